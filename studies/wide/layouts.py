"""The layouts that the wide world adds to those of training."""

from arr_coc_scenes.making import LAYOUTS, Layout
from studies.wide import charts, documents, signs

_LOOKUP, _CHART = LAYOUTS["table"][2], LAYOUTS["chart"][2]
# Layout: (its share among scenes, how to lay it, how often to ask which family).
WIDE_LAYOUTS: dict[str, Layout] = {
    "turned_street": (3.0, signs.lay_turned_street, LAYOUTS["street"][2]),
    "form": (1.2, documents.lay_form, _LOOKUP),
    "price_list": (1.2, documents.lay_price_list, _LOOKUP),
    "bill": (1.0, documents.lay_bill, LAYOUTS["receipt"][2]),
    "columns": (0.8, documents.lay_columns, LAYOUTS["page"][2]),
    "turned_table": (1.5, documents.lay_turned_table, _LOOKUP),
    "line": (1.2, charts.lay_line, _CHART),
    "lying_bars": (1.2, charts.lay_lying_bars, _CHART),
    "pie": (1.2, charts.lay_pie, _CHART),
}
