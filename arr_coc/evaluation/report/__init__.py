"""One page about results, in HTML and Markdown."""
