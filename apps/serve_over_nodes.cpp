// Serves a model whose layers stand on several nodes to many threads at once. The program writes
// where each part of the graph stands; the graph is compiled once, its ops stay on their nodes, and
// every request is a run of it. Weights are the program's, and are sent with each run. A node that
// dies costs the requests that were under way; the next ones go to whom the devices name by then.
//
//   troupe-node --label half=first &
//   troupe-node --label half=second &
//   serve_over_nodes --cluster default --first /label:half=first --second /label:half=second

#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

using namespace troupe;

namespace {

struct serving_options : cluster_flags {
  std::string first = "/job:worker/task:0", second = "/job:worker/task:1";
  std::uint32_t threads = 8, requests = 200, retries = 3, layers = 4;
  std::int64_t batch = 16, width = 64;
  bool json = false;
};

// A perceptron; its weights are drawn, since what it says does not matter here.
value model(graph& g, const serving_options& o) {
  auto x = input(g, {dtype::f32, {o.batch, o.width}}, "x");
  for (std::uint32_t layer = 0; layer < o.layers; ++layer) {
    const auto stands = g.device_scope(layer < o.layers / 2 ? o.first : o.second);
    x = tanh(dense(x, o.width, fmt::format("dense_{}", layer)));
  }
  const auto stands = g.device_scope(o.second);
  return argmax(x, -1);
}

tensor request(const serving_options& o, std::uint32_t thread, std::uint32_t number) {
  auto x = tensor::make({dtype::f32, {o.batch, o.width}});
  for (std::int64_t i = 0; i < x.elements(); ++i)
    x.data<float>()[i] = static_cast<float>((i * 37 + thread * 101 + number * 13) % 97) / 97 - 0.5F;
  return x;
}

struct outcome {
  std::uint64_t answered = 0, failed = 0, sum = 0;
  std::vector<double> milliseconds;
};

// `said`: one thread of those that see a failure tells it.
outcome ask(graph_runner& r, const serving_options& o, std::uint32_t thread, std::mutex& said) {
  outcome out;
  for (std::uint32_t i = 0; i < o.requests; ++i) {
    const auto x = request(o, thread, i);
    for (std::uint32_t attempt = 0; attempt <= o.retries; ++attempt) {
      const auto began = std::chrono::steady_clock::now();
      const auto classes = r.run({{"x", x}}, {"argmax"});
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - began;
      if (classes) {
        ++out.answered;
        out.milliseconds.push_back(took.count());
        for (std::int64_t k = 0; k < o.batch; ++k)
          out.sum += (i + 1) * static_cast<std::uint64_t>(classes->front().data<std::int32_t>()[k]);
        break;
      }
      ++out.failed;
      const std::scoped_lock one(said);
      say_error(fmt::format("serve_over_nodes: {:.0f} ms after it was asked: {}", took.count(),
                            classes.error().text()));
    }
  }
  return out;
}

result<outcome> serve(session& s, const serving_options& o) {
  graph g(s.ops());
  model(g, o);
  if (g.first_error()) return *g.first_error();
  const auto r = s.runner(g, {.name = "serving"});
  for (const auto& v : g.variables()) {
    auto weights = tensor::make(v.spec());
    for (std::int64_t i = 0; i < weights.elements(); ++i)
      weights.data<float>()[i] = static_cast<float>(i * 7919 % 211) / 211 - 0.5F;
    if (auto bound = r->bind(g.node(v.node).name, weights); !bound) return bound.error();
  }
  // Whatever is wrong with a device is told before anything runs.
  if (auto tried = r->run({{"x", request(o, 0, 0)}}, {"argmax"}); !tried) return tried.error();
  say_error(fmt::format("serving: {} threads ask {} times each", o.threads, o.requests));
  std::vector<outcome> of(o.threads);
  std::mutex said;
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < o.threads; ++t)
    threads.emplace_back([&, t] { of[t] = ask(*r, o, t, said); });
  for (auto& t : threads) t.join();
  outcome all;
  for (auto& one : of) {
    all.answered += one.answered;
    all.failed += one.failed;
    all.sum += one.sum;
    all.milliseconds.insert(all.milliseconds.end(), one.milliseconds.begin(),
                            one.milliseconds.end());
  }
  std::ranges::sort(all.milliseconds);
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  troupe::take_writes_as_errors();
  serving_options o;
  CLI::App app{
      "Serves a model whose layers stand on several nodes to many threads. Without --cluster all of "
      "it is in this process.",
      "serve_over_nodes"};
  app.footer(
      "Exit codes: 0 fine, 1 a request was not answered, 2 usage, 3 no cluster found, 5 denied.");
  o.add_cluster_flags(app, "Serve");
  app.add_option("--first", o.first, "Device of the first half of the layers")
      ->capture_default_str();
  app.add_option("--second", o.second, "Device of the second half")->capture_default_str();
  app.add_option("--layers", o.layers, "Layers of the model")
      ->check(CLI::Range(2, 1000))
      ->capture_default_str();
  app.add_option("--width", o.width, "Units of each layer")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--batch", o.batch, "Rows of a request")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--threads", o.threads, "Threads that ask")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--requests", o.requests, "Requests of each thread")->capture_default_str();
  app.add_option("--retries", o.retries, "How often a request that failed is asked again")
      ->capture_default_str();
  app.add_flag("--json", o.json, "Print one line of JSON");
  const auto fail = [](const error& e) {
    say_error("serve_over_nodes: " + e.text());
    return static_cast<int>(e.code());
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return fail(error(error_code::usage, fmt::format("{} (see --help)", e.what())));
  }
  if (auto read = o.read_cluster_flags(app); !read) return fail(read.error());
  session_options options;
  o.set_cluster(options);
  if (options.cluster.empty()) options.roles = {"/job:worker/task:0", "/job:worker/task:1"};
  auto s = session::open(options);
  if (!s) return fail(s.error());
  const auto began = std::chrono::steady_clock::now();
  const auto all = serve(**s, o);
  if (!all) return fail(all.error());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  const auto asked = std::uint64_t{o.threads} * o.requests;
  const auto at = [&](double share) {
    const auto n = all->milliseconds.size();
    return n == 0 ? 0 : all->milliseconds[std::min(n - 1, std::size_t(share * double(n)))];
  };
  const auto rate = double(all->answered) / seconds.count();
  (void)write_text(
      stdout,
      o.json
          ? fmt::format("{{\"answered\":{},\"failed\":{},\"sum\":{},\"requests_per_second\":{:.1f},"
                        "\"p50_seconds\":{:.6f},\"p99_seconds\":{:.6f}}}\n",
                        all->answered, all->failed, all->sum, rate, at(0.5) / 1e3, at(0.99) / 1e3)
          : fmt::format("{} of {} requests were answered, {:.0f} a second; half of them within "
                        "{:.2f} ms, 99 % within {:.2f} ms\n",
                        all->answered, asked, rate, at(0.5), at(0.99)));
  return all->answered == asked ? 0 : 1;
}
