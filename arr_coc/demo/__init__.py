"""The demo in the browser: `arr-coc demo`. A tab is a file, which knows of Gradio only where it is put on the page."""
