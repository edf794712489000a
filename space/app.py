"""The demo as a Hugging Face Space: one model at a time, mini unless the variable ARR_COC_MODEL names another."""

import os

from arr_coc.demo.models import Models
from arr_coc.demo.serving import serve


def main() -> None:
    models = Models([os.environ.get("ARR_COC_MODEL", "mini")], most_loaded=1)
    with models.use(models.names[0]):  # loaded before the first visitor
        pass
    host = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")  # a Space says where it wants to be reached
    serve(models, host, int(os.environ.get("GRADIO_SERVER_PORT", "7860")), for_all=True)


if __name__ == "__main__":
    main()
