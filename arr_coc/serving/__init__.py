"""Asked over HTTP, in the form of OpenAI's API: `arr-coc serve`."""
