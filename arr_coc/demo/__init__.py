"""The demo in the browser: `arr-coc demo`. Only left, page, parts, serving and the tab_ files know of Gradio."""
