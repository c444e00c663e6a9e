#!/usr/bin/env python3
"""The same training gives the same bits, wherever it runs: equality.py BIN_FOLDER"""

import harness


class equality(harness.cluster_test):
    def losses(self, path):
        with open(path) as f:
            return [line.strip().split(",") for line in f if line.strip()]

    def run_it(self, label, *arguments, alone=True):
        """(weights_hash, losses as text, the JSON line)"""
        losses = self.path(f"{label}.csv")
        p = (self.train_alone if alone else self.train)("--losses", losses, "--json", *arguments)
        result = self.json_of(p)
        written = self.losses(losses)
        self.assertEqual(len(written), result["steps"])
        return result["weights_hash"], written, result

    def test_embedded_and_over_three_nodes_every_loss_and_weight_is_equal(self):
        common = ("--workers", "2", "--shards", "2", "--epochs", "2", "--data", self.make_data())
        embedded = self.run_it("embedded", *common)
        self.start_nodes(3)
        for threads in ("1", "2"):
            clustered = self.run_it("clustered", "--threads", threads, *common, alone=False)
            self.assertEqual(clustered[1], embedded[1])
            self.assertEqual(clustered[0], embedded[0])

    def test_nodes_with_two_streams_give_the_same_bits(self):
        common = ("--workers", "2", "--shards", "2", "--epochs", "2", "--data", self.make_data())
        embedded = self.run_it("embedded", "--threads", "2", *common)
        single = self.run_it("single", *common)
        self.assertEqual(embedded[:2], single[:2])
        self.start_nodes(3, "--threads", "2")
        clustered = self.run_it("clustered", *common, alone=False)
        self.assertEqual(clustered[:2], embedded[:2])

    def test_shards_on_ps_nodes_give_the_same_bits(self):
        common = ("--workers", "2", "--shards", "2", "--epochs", "1", "--data", self.make_data())
        embedded = self.run_it("embedded", *common)
        for job in ("worker", "ps", "worker"):
            self.start_node("--job", job)
        self.wait_nodes(3)
        clustered = self.run_it("clustered", *common, alone=False)
        self.assertEqual(clustered[:2], embedded[:2])

    def test_every_optimizer_gives_the_same_bits_over_nodes(self):
        common = ("--workers", "2", "--shards", "2", "--epochs", "1", "--data", self.make_data())
        cases = (("--optimizer", "sgd", "--nesterov", "--weight-decay", "0.001", "--schedule", "step", "--decay", "0.5", "--decay-every", "3"),
                 ("--optimizer", "adam", "--schedule", "cosine", "--warmup", "2", "--minimum", "0.1"),
                 ("--optimizer", "adamw", "--clip-norm", "0.5", "--schedule", "linear"),
                 ("--optimizer", "rmsprop", "--momentum", "0.5", "--learning-rate", "0.001", "--clip-global-norm", "1"),
                 ("--optimizer", "adagrad", "--schedule", "inverse-square-root", "--warmup", "3"))
        self.start_nodes(3)
        hashes = {self.run_it("default", *common)[0]}
        for flags in cases:
            embedded = self.run_it("embedded", *flags, *common)
            self.assertEqual(self.run_it("clustered", *flags, *common, alone=False)[:2], embedded[:2], flags)
            hashes.add(embedded[0])
        self.assertEqual(len(hashes), 1 + len(cases))
        # The default is spelled out.
        same = ("--optimizer", "sgd", "--learning-rate", "0.05", "--momentum", "0.9", "--schedule", "constant")
        self.assertIn(self.run_it("same", *same, *common)[0], hashes)

    def test_fusing_changes_no_bit(self):
        common = ("--workers", "2", "--shards", "2", "--epochs", "1", "--data", self.make_data())
        fused = self.run_it("fused", "--fuse", "on", *common)
        unfused = self.run_it("unfused", "--fuse", "off", *common)
        self.assertEqual(unfused[:2], fused[:2])
        self.assertGreater(unfused[2]["actors"], fused[2]["actors"])
        self.start_nodes(3)
        clustered = self.run_it("clustered", "--fuse", "off", *common, alone=False)
        self.assertEqual(clustered[:2], fused[:2])

    def test_two_workers_with_half_the_batch_are_one_worker(self):
        data = ("--epochs", "1", "--data", self.make_data())
        one = self.run_it("one", "--batch", "128", "--workers", "1", *data)[1]
        two = self.run_it("two", "--batch", "64", "--workers", "2", *data)[1]
        self.assertEqual(len(one), len(two))
        for (step, a), (_, b) in list(zip(one, two))[:10]:
            self.assertLessEqual(abs(float(a) - float(b)) / abs(float(a)), 1e-5, f"step {step}")

    def test_the_seed_decides(self):
        data = ("--epochs", "1", "--data", self.make_data())
        first = self.run_it("first", "--seed", "1", *data)
        self.assertEqual(self.run_it("again", "--seed", "1", *data)[:2], first[:2])
        self.assertNotEqual(self.run_it("other", "--seed", "2", *data)[0], first[0])

    def test_small_last_batches_and_uneven_parts_are_equal_too(self):
        # 333 = 2 * 128 + 77: the last global batch has 77 samples, 39 and 38 for the two workers.
        common = ("--workers", "2", "--shards", "3", "--epochs", "3", "--batch", "64", "--data", self.make_data(samples=333))
        embedded = self.run_it("embedded", *common)
        self.assertEqual(len(embedded[1]), 9)
        self.start_nodes(3)
        self.assertEqual(self.run_it("clustered", *common, alone=False)[:2], embedded[:2])


if __name__ == "__main__":
    harness.main()
