"""A folder of models that a script makes, with models.json, the list of what is there."""
import json
import sys


def make_missing(folder, makers):
    """Makes the models that the folder lacks; one that fails is named, and the others are made all the same.

    `makers`: by name a function that writes the model to a path, NAME.onnx, and returns its entry in the list, a dict with
    "name". Returns the script's exit status: 0 when all are there, else 1.
    """
    folder.mkdir(parents=True, exist_ok=True)
    listing = folder / "models.json"
    entries = {entry["name"]: entry for entry in json.loads(listing.read_text())} if listing.exists() else {}
    failed = 0
    for name, make in makers.items():
        if name in entries:
            continue
        path = folder / f"{name}.onnx"
        try:
            entries[name] = make(path)
        except Exception as error:  # whatever a package throws
            path.unlink(missing_ok=True)
            print(f"{name}: {type(error).__name__}: {error}".split("\n")[0], file=sys.stderr)
            failed += 1
            continue
        listing.write_text(json.dumps(list(entries.values()), indent=1))
        print(name, flush=True)
    print(f"{len(makers) - failed} of {len(makers)} models are in {folder}")
    return 1 if failed else 0
