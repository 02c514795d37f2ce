"""Rows: read or generated, checked, split."""


def row_files(wildcards):
    """The user's own files, where the source is jsonl."""
    settings = PARAMS["data"][wildcards.environment]
    names = [settings.get(key) for key in ("path", "heldout_path")]
    return [
        str(Path(ROOT, name))
        for name in names
        if name and settings["source"] == "jsonl"
    ]


def data_json(wildcards):
    return as_json(PARAMS["data"][wildcards.environment])


rule prepare_data:
    input:
        script=script("prepare_data"),
        sources=sources("data"),
        rows=row_files,
    output:
        train="results/data/{environment}/train.jsonl",
        heldout="results/data/{environment}/heldout.jsonl",
        manifest="results/data/{environment}/manifest.json",
    log:
        "logs/prepare_data/{environment}.log",
    conda:
        "../../envs/train.yaml"
    params:
        settings=data_json,
        out=subpath(output.train, parent=True),
    shell:
        "python {input.script} --environment {wildcards.environment} --settings {params.settings:q}"
        " --root {ROOT} --out {params.out} 2> {log} || {{ cat {log} >&2; exit 1; }}"
