// A model behind HTTP: each request has numbers, as a JSON array, and is answered with what a graph
// makes of them. Requests that come at the same time are computed together. What is no such array
// is answered 400 by the stage that reads it, and goes no further.
//
//   build/bin/serve_http --listen 127.0.0.1:8080           # until Ctrl-C
//   curl --data '[1, 2, 3, 4]' http://127.0.0.1:8080/predict
//
// The graph here is a softmax; an ONNX model takes its place by runtime/onnx (apps/tune_onnx.cpp
// imports one).

#include <troupe/net.hpp>
#include <troupe/pipelines.hpp>
#include <troupe/program.hpp>
#include <troupe/troupe.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

using namespace troupe;

namespace {

constexpr std::int64_t batch_size = 32;

struct question {
  http_reply reply;
  tensor numbers;
};

struct read_numbers {
  std::int64_t count = 0;
  std::optional<question> operator()(const http_request& r) const {
    // One list and no other: a parser takes much memory for each list in a list.
    const bool is_flat = std::ranges::count(r.body, '[') == 1 && r.body.find('{') == r.body.npos;
    const auto json = is_flat ? nlohmann::json::parse(r.body, nullptr, false) : nlohmann::json();
    auto x = tensor::make({dtype::f32, {count}});
    bool is_right = json.is_array() && json.size() == static_cast<std::size_t>(count);
    for (std::size_t i = 0; is_right && i < json.size(); ++i) {
      const auto number = json[i].is_number() ? json[i].get<double>() : NAN;
      is_right = std::abs(number) <= double(std::numeric_limits<float>::max());
      if (is_right) x.data<float>()[i] = static_cast<float>(number);
    }
    if (is_right) return question{r.reply, std::move(x)};
    r.reply.answer(400, "text/plain", fmt::format("a JSON array of {} numbers is needed\n", count));
    return std::nullopt;
  }
};

// Handles go round the graph, numbers through it.
struct predict {
  graph_stage model;
  result<std::vector<http_answer>> operator()(std::vector<question> questions) {
    std::vector<tensor> numbers;
    for (const auto& q : questions) numbers.push_back(q.numbers);
    const auto made = model(std::move(numbers));
    if (!made) return made.error();
    std::vector<http_answer> answers;
    for (std::size_t i = 0; i < questions.size(); ++i) {
      const auto& y = (*made)[i];
      const std::vector<float> values(y.data<float>(), y.data<float>() + y.elements());
      answers.push_back(
          {questions[i].reply, 200, "application/json", nlohmann::json(values).dump() + "\n"});
    }
    return answers;
  }
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Answers JSON arrays of numbers with their softmax, over HTTP.", "serve_http"};
  topology_flags flags;
  flags.topology.name = "serve_http";
  http_server_options options{.listen = "127.0.0.1:8080"};
  std::int64_t numbers = 4;
  app.add_option("--listen", options.listen, "HOST:PORT; port 0 is any that is free")
      ->capture_default_str();
  app.add_option("--numbers", numbers, "Numbers of a request")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  flags.add_topology_flags(app);
  if (const auto code = flags.parse(app, argc, argv)) return *code;
  const auto fail = [](const error& e) {
    say_error("serve_http: " + e.text());
    return static_cast<int>(e.code());
  };
  auto opened = session::open({});
  if (!opened) return fail(opened.error());
  graph g((*opened)->ops());
  named(softmax(input(g, {dtype::f32, batch_of(batch_size, {numbers})}, "x")), "y");
  // A number takes some 25 characters; what is much longer is no array of them.
  options.body_bytes_max = 64 * static_cast<std::uint64_t>(numbers) + 1024;
  auto server = http_server::open(options);
  if (!server) return fail(server.error());

  topology t(flags.options());
  auto questions = map(http_requests(t, *server, "/predict"), read_numbers{numbers});
  auto batches = batch(questions, {.count = up_to(batch_size)});
  answer(unbatch(map(batches, predict{graph_stage(**opened, g, "x", "y")}, {.on_error = skip()})));
  // Who asks from now on waits until it runs; before, there was nothing at that path.
  say_error(fmt::format("serve_http: at http://{}/predict", server->address()));
  return t.run();
}
