#!/usr/bin/env python3
"""`troupe serve` over real clusters: page, JSON, metrics, tokens, HTTPS, and clients that mean no good: serve_page.py BIN_FOLDER"""

import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess

import harness

SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
UNITS = ("_seconds", "_bytes", "_ratio", "_total")


def parse_metrics(text):
    """{name: {labels: value}} and {name: type}; an AssertionError on whatever format 0.0.4 does not allow, or a naming that its rules advise against."""
    assert text.endswith("\n"), "the last line has no end"
    series, types, helped, current = {}, {}, set(), None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert name not in helped, f"{name} has HELP twice"
            helped.add(name)
            assert len(line.split(" ", 3)[3]) > 5, line
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name in helped and name not in types and kind in ("gauge", "counter"), line
            assert (kind == "counter") == name.endswith("_total"), f"{name} is a {kind}"
            types[name], series[name], current = kind, {}, name
        else:
            found = SAMPLE.fullmatch(line)
            assert found, f"no sample: {line}"
            name, labels, value = found.groups()
            assert name == current, f"{name} stands among the samples of {current}"
            pairs = [(m.group(1), re.sub(r"\\(.)", lambda e: {"n": "\n"}.get(e.group(1), e.group(1)), m.group(2))) for m in LABEL.finditer(labels or "")]
            assert len({k for k, _ in pairs}) == len(pairs), line
            key = frozenset(pairs)
            assert key not in series[name], f"twice: {line}"
            series[name][key] = float(value)
    assert all(series.values()), "a family without samples"
    return series, types


SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PROMQL = {"sum", "min", "max", "by", "rate", "increase", "deriv", "time", "label_values"}
PANELS = {"row", "stat", "timeseries", "bargauge", "table", "state-timeline"}


def check_dashboard(board, series):
    """That it is of Grafana's model, and asks for metrics and labels that there are."""
    asked = []

    def check_expression(text):
        bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
        for part in re.finditer(r"\b([a-z_]\w*)\b\s*(?:\{([^}]*)\})?", re.sub(r"\[\w+\]", "", bare)):
            name, matchers = part.groups()
            if name in series:
                labels = {label for key in series[name] for label, _ in key} | {"instance"}
                for matcher in filter(None, (matchers or "").split(",")):
                    label = re.fullmatch(r'\s*(\w+)\s*(?:=~|!~|!=|=)\s*""', matcher)
                    assert label and label.group(1) in labels, f"{text}: {name} has no label {matcher}"
                asked.append(name)
            else:
                assert name in PROMQL or name in {"state", "instance", "job_name"}, f"{text}: there is no metric {name}"

    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(board)
    assert isinstance(board["schemaVersion"], int) and re.fullmatch(r"[\w-]{1,40}", board["uid"])
    variables = {v["name"] for v in board["templating"]["list"]}
    for v in board["templating"]["list"]:
        assert v["type"] in ("datasource", "query")
        if v["type"] == "query":
            check_expression(v["query"]["query"])
    assert len({p["id"] for p in board["panels"]}) == len(board["panels"]), "an id twice"
    taken = set()
    for p in board["panels"]:
        assert p["type"] in PANELS and p["title"]
        at = p["gridPos"]
        assert at["x"] >= 0 and at["x"] + at["w"] <= 24 and at["h"] > 0
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{p['title']} lies over another one"
        taken |= cells
        if p["type"] == "row":
            continue
        assert p["targets"] and len({t["refId"] for t in p["targets"]}) == len(p["targets"])
        for t in p["targets"]:
            assert t["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            check_expression(t["expr"])
            for used in re.findall(r"\$(\w+)", t["expr"]):
                assert used in variables, f"{t['expr']}: there is no variable {used}"
            for label in re.findall(r"\{\{(\w+)\}\}", t["legendFormat"]):
                assert any(label in dict(key) for name in asked for key in series[name]), f"{t['legendFormat']}: no metric has that label"
    return set(asked)


def value(series, name, **labels):
    return series[name][frozenset(labels.items())]


class serve_page(harness.cluster_test):
    def serve(self, *arguments, cluster=None):
        p = self.start("troupe", "--cluster", cluster or self.cluster, "serve", *arguments)
        found = p.line(r"^(https?)://(\S+):(\d+)$")
        self.assertIsNotNone(found, f"{p} gave no URL\n{p.tail()}")
        self.assertEqual(p.lines["out"][0], found[0].group(0))
        p.scheme, p.host, p.port = found[0].group(1), found[0].group(2).strip("[]"), int(found[0].group(3))
        return p

    def get(self, page, target, headers={}, method="GET", connection=None):
        """(status, headers, text)"""
        c = connection or self.connect(page)
        c.request(method, target, headers=headers)
        answer = c.getresponse()
        text = answer.read().decode()
        if connection is None:
            c.close()
        return answer.status, dict(answer.getheaders()), text

    def connect(self, page):
        if page.scheme == "http":
            return http.client.HTTPConnection(page.host, page.port, timeout=harness.HANG)
        trust = ssl.create_default_context(cafile=page.ca)
        trust.check_hostname = False
        return http.client.HTTPSConnection(page.host, page.port, timeout=harness.HANG, context=trust)

    def json(self, page, target, status=200):
        got, headers, text = self.get(page, target)
        self.assertEqual(got, status, f"{target}: {text[:1000]}")
        self.assertEqual(headers["Content-Type"], "application/json; charset=utf-8")
        return json.loads(text)

    def error(self, page, target, status, part):
        said = self.json(page, target, status)
        self.assertEqual(sorted(said), ["error", "what_to_do"])
        self.assertRegex(said["error"], part)
        self.assertTrue(said["what_to_do"])

    def metrics(self, page):
        status, headers, text = self.get(page, "/metrics")
        self.assertEqual(status, 200, text)
        self.assertEqual(headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
        return *parse_metrics(text), text

    def train_long(self, name="classifier"):
        training = self.start_training("--data", self.make_data(), "--epochs", harness.ENDLESS, "--workers", 2, "--shards", 2, "--name", name,
                                       "--on-failure", "resume")
        self.until_step(training, name, 5)
        return training

    def ends(self, page, number=signal.SIGTERM):
        page.send(number)
        self.assertEqual(page.wait(), 0, page.tail())
        self.assertEqual(page.err, "")

    def test_what_it_says_of_a_training(self):
        self.start_nodes(2)
        self.train_long()
        page = self.serve()
        self.assertEqual(page.host, "127.0.0.1")
        self.assertEqual(self.get(page, "/healthz")[::2], (200, "ok\n"))
        self.assertEqual(self.get(page, "/readyz")[::2], (200, "ok\n"))

        status = self.json(page, "/api/status")
        self.assertEqual(sorted(status), sorted(json.loads(self.tool("status", "--json", codes=(0, 4)))))
        job = next(j for j in status["jobs"] if j["name"] == "classifier")
        self.assertGreaterEqual(job["step"], 5)
        for kind in ("nodes", "jobs"):
            self.assertEqual([set(x) for x in self.json(page, f"/api/{kind}")], [set(x) for x in self.list(kind)])
        self.assertTrue(self.json(page, "/api/events"))
        actors = self.json(page, "/api/actors?job=classifier")
        self.assertTrue(actors and all(a["job"] == "classifier" and a["ports"] for a in actors if a["kind"] == "op"))
        self.assertEqual(len(self.json(page, "/api/actors?job=classifier&limit=3")), 3)
        why = self.json(page, "/api/why?job=classifier")
        self.assertEqual(set(why), set(json.loads(self.tool("why", "--json", codes=(0, 4)))))
        self.assertEqual(why["job"], "classifier")
        slow = self.json(page, "/api/slow?job=classifier&seconds=1")
        self.assertEqual(slow["job"], "classifier")
        self.assertTrue(slow["shares"])
        code, headers, svg = self.get(page, "/api/graph?job=classifier")
        self.assertEqual((code, headers["Content-Type"]), (200, "image/svg+xml"))
        self.assertIn("style-src 'unsafe-inline'; sandbox", headers["Content-Security-Policy"])
        self.assertTrue(svg.startswith("<svg") and "job classifier" in svg, svg[:200])
        code, headers, file = self.get(page, "/api/timeline?seconds=0.5&job=classifier")
        self.assertEqual(code, 200, file[:1000])
        self.assertIn("attachment", headers["Content-Disposition"])
        self.assertEqual(int(headers["Troupe-Events-Left-Out"]), json.loads(file)["otherData"]["events_lost"])
        self.assertTrue(any(e.get("cat") and e["ph"] == "X" for e in json.loads(file)["traceEvents"]))
        rows = self.json(page, "/api/page")
        self.assertEqual({row[4] for row in rows["actors"] if row[2] == "shard"}, {"classifier"})

        self.error(page, "/api/actors?job=clasifier", 404, "there is no job 'clasifier'")
        self.error(page, "/api/why?job=nobody", 404, "there is no job 'nobody'")
        self.error(page, "/api/timeline?job=nobody", 404, "nobody")
        self.error(page, "/api/slow?seconds=1000", 400, "from 0.5 to 10")
        self.error(page, "/api/actors?limit=many", 400, "limit: 'many'")
        self.error(page, "/api/nothing", 404, "there is nothing at /api/nothing")
        self.ends(page, signal.SIGINT)

    def test_metrics_are_those_of_the_cluster(self):
        self.start_nodes(2)
        self.train_long()
        page = self.serve("--http", "localhost:0")
        first, types, _ = self.metrics(page)
        self.assertEqual(value(first, "troupe_up"), 1)
        self.assertEqual(value(first, "troupe_nodes", kind="node", state="alive"), 2)
        self.assertEqual(value(first, "troupe_nodes", kind="client", state="alive"), 1)
        id = self.job("classifier")["id"]
        job = {"job_name": "classifier", "job_id": id}
        self.assertEqual([dict(k)["state"] for k, v in first["troupe_job_state"].items() if v == 1 and dict(k)["job_id"] == id], ["running"])
        self.assertEqual(len([k for k in first["troupe_job_state"] if dict(k)["job_id"] == id]), 7)
        names = {n["name"] for n in self.list("nodes")}
        for of_node in ("cpu_seconds_total", "memory_bytes", "uptime_seconds", "threads"):
            self.assertEqual({dict(k)["node"] for k in first[f"troupe_node_{of_node}"]}, names)
        self.assertEqual(sum(first["troupe_node_up"].values()), 3)
        groups = {(dict(k)["job_name"], dict(k)["kind"]) for k in first["troupe_actors_busy_ratio"]}
        self.assertEqual(groups, {(a["job"], a["kind"]) for a in self.list("actors")})
        self.assertGreater(value(first, "troupe_actors_items_total", job_name="classifier", kind="op", direction="out"), 0)

        def has_grown():
            now, _, text = self.metrics(page)
            for name, kind in types.items():
                if kind == "counter":
                    for key, was in first[name].items():
                        self.assertGreaterEqual(now[name].get(key, was), was, f"{name} {dict(key)}")
            return text if value(now, "troupe_job_step", **job) > value(first, "troupe_job_step", **job) else None
        text = self.until("the job's step grows", has_grown)
        with open(os.path.join(SOURCE, "tools", "grafana", "troupe.json"), encoding="utf-8") as f:
            asked = check_dashboard(json.load(f), first)
        self.assertGreater(len(asked), 20)
        if shutil.which("promtool"):
            said = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, timeout=harness.HANG)
            self.assertEqual((said.returncode, said.stderr), (0, ""), said.stdout)
        self.ends(page)

    def test_it_waits_for_a_cluster_and_goes_on_when_nodes_are_lost(self):
        page = self.serve()
        self.assertEqual(self.get(page, "/healthz")[0], 200)
        self.error(page, "/readyz", 503, "no node of cluster")
        self.error(page, "/api/page", 503, "no node of cluster")
        series, _, _ = self.metrics(page)
        self.assertEqual(value(series, "troupe_up"), 0)
        self.assertGreaterEqual(value(series, "troupe_looks_failed_total"), 1)
        self.assertEqual(self.get(page, "/")[0], 200)
        nodes = self.start_nodes(2)
        self.until("the page is ready", lambda: self.get(page, "/readyz")[0] == 200)
        nodes[0].send(signal.SIGKILL)
        self.until("the page shows one node alone", lambda: value(self.metrics(page)[0], "troupe_nodes", kind="node", state="alive") == 1)
        self.assertEqual(self.get(page, "/readyz")[0], 200)
        nodes[1].send(signal.SIGKILL)
        self.until("the page says that nobody is there", lambda: self.get(page, "/readyz")[0] == 503)
        self.start_node()
        self.until("the page has come back", lambda: self.get(page, "/readyz")[0] == 200)
        self.ends(page)

    def test_a_node_that_stands_still_is_told_and_holds_nobody_up(self):
        nodes = self.start_nodes(2)
        page = self.serve("--timeout", "1500ms")
        nodes[1].send(signal.SIGSTOP)
        silent = self.until("a silent node", lambda: self.json(page, "/api/page")["silent"])
        series, _, _ = self.metrics(page)
        self.assertEqual(value(series, "troupe_silent_nodes"), 1)
        self.assertEqual([dict(k)["node"] for k in series["troupe_node_silent"]], [silent[0]["name"]])
        # Two looks, which take as long as the silent node is waited for.
        self.assertEqual(self.json(page, "/api/why")["kind"], "no job")
        self.ends(page)

    def test_one_records_at_a_time_and_the_end_waits_for_nobody(self):
        self.start_nodes(1)
        page = self.serve("--http", "[::1]:0")
        self.assertEqual(page.host, "::1")
        with socket.create_connection((page.host, page.port), timeout=harness.HANG) as recording:
            recording.sendall(b"GET /api/timeline?seconds=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")

            def is_refused():
                status, headers, text = self.get(page, "/api/slow?seconds=0.5")
                return (headers["Retry-After"], text) if status == 429 else None
            self.assertIn("somebody records", self.until("a second one is refused", is_refused)[1])
            self.assertEqual(self.get(page, "/api/nodes")[0], 200)
            began = self.list("nodes")
            self.ends(page)  # not after a minute: harness.HANG is as long
            self.assertEqual(len(self.list("nodes")), len(began))

    def test_a_recording_ends_when_who_asked_for_it_has_gone(self):
        self.start_nodes(1)
        page = self.serve()
        for path in (b"/api/timeline?seconds=60", b"/api/slow?seconds=10"):
            with socket.create_connection((page.host, page.port), timeout=harness.HANG) as gone:
                gone.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.until("it has begun", lambda: self.get(page, "/api/slow?seconds=0.5")[0] == 429)
            self.until("the next one may ask", lambda: self.get(page, "/api/timeline?seconds=0.1")[0] == 200, seconds=30)  # of the 60 that were asked for
        self.ends(page)

    def test_a_second_signal_ends_it_at_once(self):
        self.start_nodes(1)
        page = self.serve()
        with socket.create_connection((page.host, page.port), timeout=harness.HANG) as recording:
            recording.sendall(b"GET /api/timeline?seconds=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.until("it records", lambda: self.get(page, "/api/slow?seconds=0.5")[0] == 429)
            page.send(signal.SIGINT)
            self.until("it takes no more connections", lambda: self.is_closed(page))
            page.send(signal.SIGINT)
            self.assertIn(page.wait(), (0, -signal.SIGINT), page.tail())

    def is_closed(self, page):
        try:
            socket.create_connection((page.host, page.port), timeout=harness.HANG).close()
        except ConnectionError:
            return True
        return False

    # --- the page, in a browser ---------------------------------------------------------------------------------------

    def dom(self, page):
        """What a browser has made of the page after its first answers."""
        browser = shutil.which("chromium")
        if browser is None:
            self.skipTest("the page is looked at with chromium, which is not installed (Debian: chromium)")
        # Its time runs ahead of ours while nothing is loaded: seconds of the page are over at once.
        p = harness.program([browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-breakpad", "--no-first-run",
                             f"--user-data-dir={self.path('browser')}", "--virtual-time-budget=4000", "--dump-dom",
                             f"http://{page.host}:{page.port}/"], dict(self.environment, HOME=self.folder.name))
        self.programs.append(p)
        try:
            self.assertEqual(p.wait(2 * harness.HANG), 0, p.tail())
        finally:
            try:
                os.killpg(p.pid, signal.SIGKILL)  # its helpers
            except ProcessLookupError:
                pass
        return p.out

    def test_a_browser_shows_the_cluster(self):
        names = {self.name_of(n) for n in self.start_nodes(2)}
        name = "<script>document.title='it ran'</script><b>"
        self.train_long(name)
        page = self.serve()
        dom = self.dom(page)
        escaped = name.replace("<", "&lt;").replace(">", "&gt;")
        self.assertIn(f"<h3>{escaped}</h3>", dom)
        self.assertEqual(dom.count("<script>"), 1)  # the page's own
        self.assertNotIn("<title>it ran", dom)
        self.assertIn('class="pill good" role="status">live<', dom)
        self.assertRegex(dom, r'id="summary"[^>]*>2 nodes, 1 job running, \d+ actors<')
        for node in names:
            self.assertIn(f"<td class=\"\">{node}</td>", dom)
        rows = re.findall(r'<tr class="[a-z]*" aria-rowindex="\d+">', dom)
        self.assertGreater(len(rows), 5)
        self.assertRegex(dom, r'<g class="vertex [a-z]*"><title>worker/0/')
        self.assertRegex(dom, r'<option value="[0-9a-f]+">&lt;script&gt;')

    def test_a_browser_is_told_that_nobody_is_there(self):
        dom = self.dom(self.serve())
        self.assertIn(">no cluster<", dom)
        self.assertIn("The cluster does not answer: no node of cluster", dom)

    # --- who may look -------------------------------------------------------------------------------------------------

    def token_file(self, name="token", text="a-token-of-the-tests-0123456789"):
        with open(os.open(self.path(name), os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as f:
            f.write(text + "\n")
        return self.path(name), text

    def test_a_token_lets_in_and_nothing_else_does(self):
        file, token = self.token_file()
        page = self.serve("--page-token-file", file)
        for target in ("/", "/metrics", "/api/status", "/nothing"):
            status, headers, text = self.get(page, target)
            self.assertEqual((status, headers["WWW-Authenticate"]), (401, 'Bearer realm="troupe"'), target)
            self.assertNotIn("no node", text)
        self.assertEqual(self.get(page, "/healthz")[0], 200)
        self.assertEqual(self.get(page, "/readyz")[::2], (503, "not ready\n"))
        self.assertEqual(self.get(page, "/metrics", {"Authorization": "Bearer " + token})[0], 200)
        self.assertEqual(self.get(page, "/metrics", {"Authorization": "Bearer x" + token})[0], 401)
        status, headers, _ = self.get(page, "/?token=wrong")
        self.assertEqual((status, headers["Location"]), (303, "/?wrong"))
        status, headers, text = self.get(page, "/?wrong")
        self.assertEqual((status, headers["Connection"]), (401, "close"))
        self.assertIn("That is not the token", text)
        self.assertEqual(self.get(page, "/api/status?token=wrong")[0], 401)
        status, headers, _ = self.get(page, f"/api/status?token={token}")
        self.assertEqual((status, headers["Location"]), (303, "/api/status"))
        cookie = headers["Set-Cookie"]
        self.assertIn("HttpOnly", cookie)
        self.assertIn("SameSite=Strict", cookie)
        self.assertNotIn(token, cookie)
        self.assertEqual(self.get(page, "/", {"Cookie": cookie.split(";")[0]})[0], 200)
        self.assertEqual(self.get(page, "/", {"Cookie": cookie.split(";")[0] + "0"})[0], 401)
        self.ends(page)

    def test_the_clusters_token_is_the_pages_unless_it_has_its_own(self):
        file, token = self.token_file()
        self.address(self.start_node("--token-file", file))
        page = self.serve("--token-file", file)
        self.assertEqual(self.get(page, "/readyz")[0], 200)
        self.assertEqual(self.get(page, "/api/nodes")[0], 401)
        self.assertEqual(self.get(page, "/api/nodes", {"Authorization": "Bearer " + token})[0], 200)
        own, other = self.token_file("own", "another-token-for-the-page-alone")
        page = self.serve("--token-file", file, "--page-token-file", own)
        self.assertEqual(self.get(page, "/api/nodes", {"Authorization": "Bearer " + token})[0], 401)
        self.assertEqual(self.get(page, "/api/nodes", {"Authorization": "Bearer " + other})[0], 200)

    def test_beyond_this_machine_a_token_is_needed(self):
        refused = self.run_program("troupe", "serve", "--http", "0.0.0.0:0")
        self.assertEqual((refused.code, refused.out), (2, ""))
        self.assertRegex(refused.err, r"^troupe: --http 0.0.0.0:0: .* give --page-token-file FILE .*--insecure$")
        page = self.serve("--http", "0.0.0.0:0", "--insecure")
        page.host = "127.0.0.1"
        self.assertEqual(self.get(page, "/healthz")[0], 200)
        self.assertEqual(self.get(page, "/healthz", {"Host": "10.0.0.7:8080"})[0], 200)
        self.assertEqual(self.get(page, "/healthz", {"Host": "evil.example"})[0], 403)
        with open("/dev/full", "w", encoding="utf-8") as full:
            unheard = subprocess.run([os.path.join(harness.BIN, "troupe"), "serve"], env=self.environment, stdout=full, stderr=subprocess.PIPE, text=True,
                                     timeout=harness.HANG)
        self.assertEqual(unheard.returncode, 1)
        self.assertIn("could not be written to standard output", unheard.stderr)
        for flags, part in ((("--http", "nonsense"), "--http: "), (("--page-token-file", self.path("none")), "none"),
                            (("--tls-key", self.path("none")), "--tls-certificate is missing")):
            refused = self.run_program("troupe", "serve", *flags)
            self.assertEqual((refused.code, refused.out), (2, ""), refused.err)
            self.assertIn(part, refused.err)
            self.assertEqual(len(refused.lines["err"]), 1, refused.err)
        taken = self.run_program("troupe", "serve", "--http", f"127.0.0.1:{page.port}")
        self.assertEqual(taken.code, 1, taken.err)
        self.assertIn(f"--http: cannot listen at 127.0.0.1:{page.port}", taken.err)

    def test_other_sites_learn_nothing(self):
        page = self.serve()
        self.assertEqual(self.get(page, "/api/page", {"Host": "evil.example"})[0], 403)
        self.assertEqual(self.get(page, "/api/page", {"Host": f"localhost:{page.port}"})[0], 503)
        self.assertEqual(self.get(page, "/metrics", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"})[0], 403)
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        self.assertEqual(self.get(page, "/", link)[0], 200)
        self.assertEqual(self.get(page, "/api/timeline?seconds=60", link)[0], 403)
        self.assertEqual(self.get(page, "/", dict(link, **{"Sec-Fetch-Dest": "iframe"}))[0], 403)
        headers = self.get(page, "/", {"Origin": "https://evil.example"})[1]
        self.assertNotIn("Access-Control-Allow-Origin", headers)
        self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertNotIn("unsafe", headers["Content-Security-Policy"])

    def test_https(self):
        if shutil.which("openssl") is None:
            self.skipTest("certificates need the program openssl")
        key, certificate = self.path("key.pem"), self.path("certificate.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=page", "-days", "2",
                        "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=harness.HANG)
        os.chmod(key, 0o600)
        self.start_nodes(1)
        file, token = self.token_file()
        page = self.serve("--tls-certificate", certificate, "--tls-key", key, "--page-token-file", file)
        self.assertEqual(page.scheme, "https")
        page.ca = certificate
        self.assertEqual(self.get(page, "/api/nodes")[0], 401)
        self.assertIn("; Secure", self.get(page, f"/?token={token}")[1]["Set-Cookie"])
        self.assertEqual(self.get(page, "/api/nodes", {"Authorization": "Bearer " + token})[0], 200)
        with socket.create_connection((page.host, page.port), timeout=harness.HANG) as s:  # no TLS
            s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            said = self.read_all(s)
            self.assertTrue(said.startswith(b"HTTP/1.1 400 ") and b"this is HTTPS" in said, said)
            self.assertIn(b"open https://HOST:%d" % page.port, said)
        for flags, part in ((("--tls-certificate", certificate, "--tls-key", self.path("none")), "--tls-key"),
                            (("--tls-certificate", self.path("none"), "--tls-key", key), "--tls-certificate")):
            refused = self.run_program("troupe", "serve", *flags)
            self.assertEqual(refused.code, 2, refused.err)
            self.assertIn(f"{part} {self.path('none')}: cannot read it: No such file", refused.err)
        os.chmod(key, 0o644)
        refused = self.run_program("troupe", "serve", "--tls-certificate", certificate, "--tls-key", key)
        self.assertEqual(refused.code, 5, refused.err)
        self.assertIn("chmod 600", refused.err)

    def test_the_url_as_json(self):
        p = self.start("troupe", "serve", "--json")
        found = p.line(r"^\{\"url\":\"http://127\.0\.0\.1:\d+\"\}$")
        self.assertIsNotNone(found, p.tail())
        self.ends(p)

    # --- clients that mean no good ------------------------------------------------------------------------------------

    def read_all(self, s):
        """Until the other end closes."""
        s.settimeout(harness.HANG)
        got = b""
        try:
            while piece := s.recv(65536):
                got += piece
        except ConnectionError:
            pass
        return got

    def ask_raw(self, page, bytes):
        with socket.create_connection((page.host, page.port), timeout=harness.HANG) as s:
            try:
                s.sendall(bytes)
                s.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has closed already
            return self.read_all(s)

    def test_requests_of_http_that_are_refused(self):
        page = self.serve()
        host = b"Host: localhost\r\n"
        for request, status in (
                (b"GET / HTTP/1.1\r\n\r\n", 400), (b"GET / HTTP/1.1\r\n" + host + host + b"\r\n", 400),
                (b"GET / HTTP/1.0\r\n\r\n", 200), (b"HEAD / HTTP/1.1\r\n" + host + b"\r\n", 200),
                (b"POST / HTTP/1.1\r\n" + host + b"Content-Length: 3\r\n\r\nabc", 405), (b"DELETE / HTTP/1.1\r\n" + host + b"\r\n", 405),
                (b"BREW / HTTP/1.1\r\n" + host + b"\r\n", 405),
                (b"GET / HTTP/1.1\r\n" + host + b"Content-Length: 3\r\n\r\nabc", 413),
                (b"GET / HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
                (b"GET / HTTP/1.1\r\n" + host + b"X: " + b"a" * 9000 + b"\r\n\r\n", 431), (b"GET /" + b"a" * 20000, 431),
                (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n" + host + b"\r\n", 400), (b"GET http://localhost/ HTTP/1.1\r\n" + host + b"\r\n", 200),
                (b"GET http://evil.example/ HTTP/1.1\r\n" + host + b"\r\n", 403), (b"GET / HTTP/1.1\r\nHost: localhost.\r\n\r\n", 200),
                (b"GET /%00 HTTP/1.1\r\n" + host + b"\r\n", 400), (b"nonsense\r\n\r\n", 400), (b"\x16\x03\x01\x02\x00\x01\x00", 400),
                (b"GET /../../etc/passwd HTTP/1.1\r\n" + host + b"\r\n", 404)):
            said = self.ask_raw(page, request)
            self.assertRegex(said, rb"^HTTP/1.1 %d " % status, request[:80])
            if request.startswith(b"HEAD"):
                self.assertTrue(said.endswith(b"\r\n\r\n"))
        # Two at once, on one connection.
        both = self.ask_raw(page, (b"GET /healthz HTTP/1.1\r\n" + host + b"\r\n") * 2)
        self.assertEqual(both.count(b"HTTP/1.1 200 OK"), 2)
        connection = self.connect(page)
        for _ in range(3):
            self.assertEqual(self.get(page, "/healthz", connection=connection)[0], 200)
        connection.close()
        self.ends(page)

    def test_broken_requests_of_all_kinds(self):
        page = self.serve()
        seed = 7
        draw = random.Random(seed)
        pieces = [b"GET ", b"HEAD ", b"POST ", b"/", b"/metrics", b"/api/actors", b"?job=", b"&limit=", b"%", b"%41", b"%ff", b" HTTP/1.1", b" HTTP/9.9",
                  b"\r\n", b"\n", b"\r", b"Host: localhost\r\n", b"Host:", b"Cookie: a=b;", b"Authorization: Bearer ", b"Content-Length: ",
                  b"Transfer-Encoding: chunked\r\n", b"99999999999999999999", b"-1", b"\0", b"\xff\xfe", b"a" * 300, b":", b" ", b"\t", b"\r\n\r\n"]
        for number in range(300):
            request = b"".join(draw.choice(pieces) for _ in range(draw.randrange(1, 20)))
            said = self.ask_raw(page, request)
            self.assertTrue(said == b"" or said.startswith(b"HTTP/1.1 "), f"seed {seed}, request {number}: {request} was answered {said[:200]}")
            self.assertNotIn(b"HTTP/1.1 500", said, f"seed {seed}, request {number}: {request}")
        self.assertEqual(self.get(page, "/healthz")[0], 200)
        self.ends(page)

    def test_many_who_say_nothing_or_do_not_read_hold_nobody_up(self):
        self.start_nodes(1)
        page = self.serve()
        idle = []
        for number in range(150):  # more than it keeps
            s = socket.create_connection((page.host, page.port), timeout=harness.HANG)
            s.sendall(b"GET /api/status HTTP/1.1\r\nX: "[:number % 30])
            idle.append(s)
        for _ in range(3):
            self.assertEqual(self.get(page, "/api/nodes")[0], 200)
        deaf = []
        for _ in range(20):  # they ask again and again, and read no answer
            s = socket.create_connection((page.host, page.port), timeout=harness.HANG)
            s.setblocking(False)
            try:
                for _ in range(2000):
                    s.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            except (BlockingIOError, ConnectionError):
                pass
            deaf.append(s)
        self.assertEqual(self.get(page, "/api/nodes")[0], 200)
        with open(f"/proc/{page.pid}/status", encoding="utf-8") as f:
            resident = int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1))
        self.assertLess(resident, 500_000, "kB")
        self.assertLess(len(os.listdir(f"/proc/{page.pid}/fd")), 100)
        self.ends(page)
        for s in idle + deaf:
            s.close()

    def test_many_without_the_token_hold_nobody_up(self):
        file, token = self.token_file()
        page = self.serve("--page-token-file", file)
        deaf = []
        for number in range(150):  # more than it keeps; they read no answer
            s = socket.create_connection((page.host, page.port), timeout=harness.HANG)
            s.setblocking(False)
            try:
                for _ in range(500):
                    s.send(b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"readyz" if number % 2 else b""))
            except (BlockingIOError, ConnectionError):
                pass
            deaf.append(s)
            if number % 50 == 49:
                self.assertEqual(self.get(page, "/healthz")[0], 200)
                self.assertEqual(self.get(page, "/metrics", {"Authorization": "Bearer " + token})[0], 200)
        for s in deaf:
            said = self.read_all(s)
            self.assertLessEqual(said.count(b"HTTP/1.1 "), 1, "one answer, and the connection ends")
            s.close()
        self.ends(page)


if __name__ == "__main__":
    harness.main()
