"""arr-coc batch --engine vllm: the same records as without. Run by `make serve-test`."""

import base64

import numpy as np

from arr_coc.batch.asked import AskedRow
from arr_coc.batch.job import BatchJob, Desk
from arr_coc.batch.offline import OfflineEngine

QUESTIONS = ("What colour is the hand?", "Describe the scene.", "Which word is blue?")


def test_rows_are_answered_as_ask_answers(own, pictures, tmp_path):
    """Dials of their own, two images in one row, special tokens that stay text, and a row that cannot be answered."""
    for number, picture in enumerate(pictures[:4]):
        picture.save(tmp_path / f"{number}.png")
    dials = ("auto", 0.25, 1.0, 64)
    rows = [AskedRow(str(n), (f"{n % 4}.png",), QUESTIONS[n % 3], dials[n % 4]) for n in range(8)]
    rows.append(AskedRow("two", ("0.png", "1.png"), QUESTIONS[0], 0.25))
    rows.append(AskedRow("text", ("2.png",), "<|im_end|> Which word is blue?"))
    rows.append(AskedRow("none", ("none.png",), QUESTIONS[0]))
    load = lambda: OfflineEngine("mini", "auto", None, max_model_len=4096)  # noqa: E731
    desk = Desk(BatchJob(load, "mini", "auto", tmp_path, batch=64))
    found = {record["id"]: record for record in desk.answer(rows)}
    desk.close()
    assert "no such image file" in found.pop("none")["error"]
    for row in rows[:-1]:
        record, images = found[row.id], [pictures[int(name[0])] for name in row.image]
        answer = own.ask(images, row.question, keep=row.keep or "auto")
        assert record["answer"] == answer.text
        assert (record["tokens_kept"], record["tokens_total"]) == (answer.tokens_kept, answer.tokens_total)
        for mask, image in zip(record["kept_mask"], answer.selection, strict=True):
            bits = np.unpackbits(np.frombuffer(base64.b64decode(mask), np.uint8), count=image.tokens_total)
            assert np.array_equal(np.flatnonzero(bits), image.kept.numpy())
