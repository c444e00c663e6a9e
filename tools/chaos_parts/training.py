"""The training that the scenarios disturb, and the undisturbed one that it has to equal."""

import json
import os

from stage import broken, harness, stage

WORKERS, SHARDS, JOB = 2, 2, "job"


def samples_of(data):
    """How many training samples the folder has."""
    import gzip
    for name, opener in (("train-labels-idx1-ubyte", open), ("train-labels-idx1-ubyte.gz", gzip.open)):
        path = os.path.join(data, name)
        if os.path.exists(path):
            with opener(path, "rb") as f:
                return int.from_bytes(f.read(8)[4:], "big")
    raise FileNotFoundError(f"no training labels in {data}")


class references:
    """Undisturbed runs, embedded in one process (which gives the same bits as a cluster), each made once."""

    def __init__(self, options, data, say):
        self.options, self.data, self.say = options, data, say
        self.found = {}

    def get(self, epochs, batch=128, workers=WORKERS):
        key = (epochs, batch, workers)
        if key not in self.found:
            self.say(f"undisturbed run: {epochs} epochs of batch {batch}, {workers} workers")
            self.found[key] = self._make(*key)
        return self.found[key]

    def _make(self, epochs, batch, workers):
        with stage(self.options) as s:
            path = s.path("losses")
            done = s.run_program("train_classifier", "--data", self.data, "--workers", workers, "--epochs", epochs, "--batch", batch,
                                 "--json", "--losses", path, seconds=3600)
            if done.code != 0:
                raise broken(f"the undisturbed run ended with {done.code}: {done.tail()}")
            with open(path) as f:
                losses = [line.split(",")[1] for line in f.read().split()]
            return {"hash": json.loads(done.lines["out"][-1])["weights_hash"], "losses": losses}


def flags(options, data, epochs, folder=None, every=None, batch=128):
    out = ["--workers", WORKERS, "--shards", SHARDS, "--epochs", epochs, "--batch", batch, "--data", data, "--json", "--name", JOB, "--on-failure",
           "resume"]
    if every:
        out += ["--checkpoint", folder, "--checkpoint-every", every]
    if options.replicas is not None:
        out += ["--replicas", options.replicas]
    return out


def make_ledger_data(s, rows=64, columns=64):
    """Images for sample_ledger: as many as pixels, number i is 1 at pixel i."""
    folder, count = s.path("ledger"), rows * columns
    os.makedirs(folder)
    with open(os.path.join(folder, "train-images-idx3-ubyte"), "wb") as f:
        f.write(b"\x00\x00\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (count, rows, columns)))
        for i in range(count):
            f.write(bytes(i) + b"\xff" + bytes(count - 1 - i))
    with open(os.path.join(folder, "train-labels-idx1-ubyte"), "wb") as f:
        f.write(b"\x00\x00\x08\x01" + count.to_bytes(4, "big") + bytes(count))
    return folder


def check_losses(commits, reference, first=0):
    """Every step told once, in order, from `first` on, with the bits of the undisturbed run."""
    for i, (step, loss) in enumerate(zip(commits.steps, commits.losses)):
        if step != first + i:
            raise broken(f"steps are not told once and in order: {step} where {first + i} was due")
        if loss != reference["losses"][step]:
            raise broken(f"the loss of step {step} is {loss}; undisturbed: {reference['losses'][step]}")


def finish(s, reference, seconds=600):
    """Until the training ends; its JSON, with the bits of the undisturbed run."""
    s.wait_for("the training ends", lambda: not s.training.is_running(), seconds)
    code = s.training.wait()
    if code != 0:
        raise broken(f"the training ended with {code}: {s.training.tail()}")
    result = s.json_of(s.training)
    if result["weights_hash"] != reference["hash"]:
        raise broken(f"weights_hash {result['weights_hash']}; undisturbed: {reference['hash']}")
    return result


def cut_in_progress(folder):
    """The folder of a checkpoint of the newest epoch that has no manifest yet, or None."""
    try:
        names = os.listdir(os.path.join(folder, JOB))
    except FileNotFoundError:
        return None
    epochs = [int(n.split("-")[1]) for n in names if n.startswith("epoch-")]
    newest = max(epochs, default=1)
    cuts = sorted(n for n in names if n.startswith("step-") and n.endswith(f".epoch-{newest}"))
    if not cuts or os.path.exists(os.path.join(folder, JOB, cuts[-1], "manifest.json")):
        return None
    return cuts[-1]


def steps_scale(data, batch=128):
    """How many epochs of this data are as many steps as one of 60000 samples."""
    return 60000 / samples_of(data)
