"""Our own report (docs/report): the product's page, with verdicts on what this project promised."""
