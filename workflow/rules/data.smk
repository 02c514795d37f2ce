"""Rows: read or generated, checked, split."""


# the hub may be out of the reach of a cluster's nodes
localrules:
    prepare_data,


rule prepare_data:
    input:
        script=script("prepare_data"),
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
        code=code("data"),
        settings=data_json,
        root=ROOT,
        out=subpath(output.train, parent=True),
    shell:
        "python {input.script} --environment {wildcards.environment} --settings {params.settings:q}"
        " --root {params.root} --out {params.out} 2> {log} || {{ cat {log} >&2; exit 1; }}"
