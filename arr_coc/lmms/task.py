"""arr_coc_scenes for lmms-eval: its documents are made here instead of downloaded."""

from typing import Any

from datasets import Dataset, DatasetDict
from lmms_eval.api.task import ConfigurableMessagesTask

from arr_coc.lmms.documents import METRICS, mean_score, scene_documents


class ScenesTask(ConfigurableMessagesTask):
    """What the YAML says, with a metric per family."""

    def __init__(self, config: dict[str, Any]) -> None:
        metrics = [{"metric": name, "aggregation": mean_score, "higher_is_better": True} for name in METRICS]
        settings = {name: value for name, value in config.items() if name != "class"}
        super().__init__(config={**settings, "metric_list": metrics})

    def download(self, dataset_kwargs: dict[str, Any]) -> None:
        """Make the documents; their pictures are drawn when a question is asked."""
        documents = Dataset.from_list(scene_documents(**dataset_kwargs))
        self.dataset = self.dataset_no_image = DatasetDict({self.config.test_split: documents})
