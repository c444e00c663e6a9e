#include "tools/troupe-tool/serve_answer.hpp"

#include "tools/troupe-tool/graph_view.hpp"
#include "tools/troupe-tool/near_names.hpp"
#include "tools/troupe-tool/serve_metrics.hpp"
#include "troupe/runtime/insight/slow.hpp"
#include "troupe/runtime/insight/why.hpp"
#include "troupe/runtime/text/json_line.hpp"
#include "troupe/schema/version.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

namespace troupe {

extern const std::string_view serve_page;  // page/index.html

namespace {

constexpr const char *json_type = "application/json; charset=utf-8",
                     *html_type = "text/html; charset=utf-8", *plain_type = "text/plain",
                     *svg_type = "image/svg+xml";

constexpr std::string_view login_style =
    ":root{color-scheme:light dark}body{font:16px system-ui,sans-serif;margin:3rem auto;max-width:"
    "26rem;padding:0 1rem}input,button{font:inherit;padding:.5rem;width:100%;"
    "box-sizing:border-box;margin:.3rem 0}";

struct served_path {
  std::string_view path;
  page_kind kind;
  std::array<std::string_view, 3> keys;  // of its query
};
constexpr std::array served_paths{
    served_path{"/", page_kind::fixed, {}},
    served_path{"/favicon.ico", page_kind::fixed, {}},
    served_path{"/healthz", page_kind::fixed, {}},
    served_path{"/readyz", page_kind::look, {}},
    served_path{"/metrics", page_kind::look, {}},
    served_path{"/api/page", page_kind::look, {}},
    served_path{"/api/status", page_kind::look, {}},
    served_path{"/api/nodes", page_kind::look, {}},
    served_path{"/api/jobs", page_kind::look, {}},
    served_path{"/api/events", page_kind::look, {}},
    served_path{"/api/actors", page_kind::look, {"job", "limit"}},
    served_path{"/api/graph", page_kind::look, {"job", "format"}},
    served_path{"/api/why", page_kind::two_looks, {"job"}},
    served_path{"/api/slow", page_kind::slow, {"job", "seconds"}},
    served_path{"/api/timeline", page_kind::timeline, {"job", "seconds"}},
};

const served_path* find_path(std::string_view path) noexcept {
  const auto at = std::ranges::find(served_paths, path, &served_path::path);
  return at == served_paths.end() ? nullptr : &*at;
}

web_answer json_answer(std::string body) {
  body += '\n';
  return {200, json_type, std::move(body)};
}

// Newest first; nullptr: there is none of that name or id.
const job_snapshot* job_named(const cluster_snapshot& c, std::string_view name) {
  const job_snapshot* found = nullptr;
  const auto rank = [](const job_snapshot& j) {
    return std::pair(is_over(j.state), j.started_seconds);
  };
  for (const auto& j : c.jobs) {
    if (j.id == name) return &j;
    if (j.name == name && (found == nullptr || rank(j) < rank(*found))) found = &j;
  }
  return found;
}

web_answer no_such_job(const cluster_snapshot& c, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& j : c.jobs) names.push_back(j.name);
  return json_error(404, fmt::format("there is no job '{}' here", name),
                    "/api/jobs lists all jobs" + did_you_mean(name, names));
}

web_answer answer_actors(const request_target& t, const cluster_snapshot& c) {
  auto limit = c.actors.size();
  if (const auto* text = t.find("limit")) {
    const auto* end = text->data() + text->size();
    const auto [rest, failure] = std::from_chars(text->data(), end, limit);
    if (failure != std::errc{} || rest != end)
      return json_error(400, fmt::format("limit: '{}' is no whole number", *text),
                        "write how many actors are listed at most: limit=100");
  }
  const auto job = job_of(t);
  const auto* wanted = job.empty() ? nullptr : job_named(c, job);
  if (!job.empty() && wanted == nullptr) return no_such_job(c, job);
  if (wanted == nullptr)
    return json_answer(
        to_json(std::span<const actor_snapshot>(c.actors).first(std::min(limit, c.actors.size()))));
  std::vector<actor_snapshot> some;
  for (const auto& a : c.actors)
    if (belongs(a, *wanted) && some.size() < limit) some.push_back(a);
  return json_answer(to_json(std::span<const actor_snapshot>(some)));
}

web_answer answer_graph_of(const request_target& t, const cluster_snapshot& c) {
  const auto* format = t.find("format");
  if (format != nullptr && *format != "svg" && *format != "json")
    return json_error(400, fmt::format("format: '{}' is none", *format),
                      "write format=svg, which is the default, or format=json");
  const bool is_json = format != nullptr && *format == "json";
  const auto job = job_of(t);
  cluster_snapshot part;
  if (!job.empty()) {
    const auto* wanted = job_named(c, job);
    if (wanted == nullptr) return no_such_job(c, job);
    part.jobs = {*wanted};
    for (const auto& a : c.actors)
      if (belongs(a, *wanted)) part.actors.push_back(a);
  }
  const auto views = make_graph_views(job.empty() ? c : part);
  if (is_json) return json_answer(graph_json(views));
  return {200, svg_type, draw_graph_svg(views)};
}

// What the page at / reads: of actors what its table shows, as rows, since there may be many.
std::string page_json(const cluster_look& l) {
  using json = nlohmann::ordered_json;
  const auto& c = *l.snapshot;
  json head = {{"version", version()},
               {"cluster", c.cluster},
               {"look", l.number},
               {"unix_seconds", three_decimals(l.unix_seconds)},
               {"look_seconds", three_decimals(l.seconds())},
               {"actors_left_out", c.actors_left_out}};
  json silent = json::array(), actors = json::array();
  for (const auto& s : c.silent) silent.push_back({{"name", s.name}, {"reason", s.reason}});
  for (const auto& a : c.actors) {
    std::uint64_t in = 0, out = 0;
    double wait = 0;
    for (const auto& p : a.ports) {
      (p.is_input() ? in : out) += p.items;
      if (a.waits_at(p)) wait = std::max(wait, p.since_seconds);
    }
    actors.push_back({a.id, a.name, a.kind, a.node, a.job, a.job_id, to_string(a.state),
                      three_decimals(a.since_seconds), three_decimals(a.busy_ratio), a.queue,
                      a.steps, in, out, a.bytes_in, a.bytes_out, three_decimals(wait)});
  }
  auto text = json_line(head);
  text.pop_back();
  return fmt::format("{},\"nodes\":{},\"jobs\":{},\"events\":{},\"silent\":{},\"actors\":{}}}",
                     text, to_json(std::span<const node_snapshot>(c.nodes)),
                     to_json(std::span<const job_snapshot>(c.jobs)),
                     to_json(std::span<const event>(c.events)), json_line(silent),
                     json_line(actors));
}

web_answer answer_why(const request_target& t, const cluster_look& look,
                      const cluster_look* before) {
  const auto answer =
      explain(*look.snapshot, job_of(t), before != nullptr ? &before->snapshot.value() : nullptr);
  if (!answer && answer.error().code() == error_code::not_found && !job_of(t).empty())
    return no_such_job(*look.snapshot, job_of(t));
  return answer ? json_answer(answer->json()) : error_answer(answer.error());
}

web_answer answer_ready(const cluster_look& look) {
  if (!look.snapshot) return error_answer(*look.failure);
  return {200, plain_type, "ok\n"};
}

// Of `<script>` and `<style>`, of which the page has one each.
std::string_view between(std::string_view text, std::string_view begin, std::string_view end) {
  const auto from = text.find(begin);
  if (from == text.npos) return {};
  const auto at = from + begin.size();
  return text.substr(at, text.find(end, at) - at);
}

}  // namespace

page_kind kind_of_page(std::string_view path) noexcept {
  const auto* known = find_path(path);
  return known == nullptr ? page_kind::none : known->kind;
}

std::optional<web_answer> wrong_key(const request_target& t) {
  if (t.path == "/readyz") return std::nullopt;  // probes add what they like, as to /healthz
  const auto* known = find_path(t.path);
  for (const auto& [key, value] : t.query)
    if (known != nullptr && key != "token" &&
        std::ranges::find(known->keys, key) == known->keys.end())
      return json_error(400, fmt::format("{}: there is no key '{}'", t.path, key),
                        "leave it out; troupe serve --help lists the keys of each path");
  return std::nullopt;
}

web_answer json_error(unsigned status, std::string_view error, std::string_view what_to_do) {
  const nlohmann::ordered_json j = {{"error", error}, {"what_to_do", what_to_do}};
  return {status, json_type, json_line(j) + "\n"};
}

web_answer error_answer(const error& e) {
  switch (e.code()) {
    case error_code::not_found: return json_error(404, e.text(), "/api/jobs lists all jobs");
    case error_code::usage:
      return json_error(400, e.text(), "give what the error asks for, in the query");
    case error_code::timed_out:
      return json_error(503, e.text(),
                        "ask again; troupe list nodes says who answers, and --timeout of troupe "
                        "serve gives them longer");
    case error_code::denied:
      return json_error(503, e.text(),
                        "start troupe serve with the --token-file, the --cluster and the "
                        "protection of connections that the nodes have");
    case error_code::unreachable:
      return json_error(503, e.text(),
                        "start nodes (troupe-node), or start troupe serve with the --cluster and "
                        "--join of those that run; the page comes back by itself");
    default: return json_error(500, e.text(), "troupe events says what happened on the nodes");
  }
}

web_answer answer_fixed(const std::string& path) {
  if (path == "/") return {200, html_type, std::string(serve_page)};
  return {204, {}, {}};
}

web_answer answer_look(const request_target& t, const cluster_look& look,
                       const cluster_look* before) {
  if (t.path == "/metrics") return {200, metrics_type, metrics_text(look)};
  if (t.path == "/readyz") return answer_ready(look);
  if (!look.snapshot) return error_answer(*look.failure);
  const auto& c = *look.snapshot;
  if (t.path == "/api/page") return json_answer(page_json(look));
  if (t.path == "/api/status") return json_answer(to_json(c));
  if (t.path == "/api/nodes") return json_answer(to_json(std::span<const node_snapshot>(c.nodes)));
  if (t.path == "/api/jobs") return json_answer(to_json(std::span<const job_snapshot>(c.jobs)));
  if (t.path == "/api/events") return json_answer(to_json(std::span<const event>(c.events)));
  if (t.path == "/api/actors") return answer_actors(t, c);
  if (t.path == "/api/graph") return answer_graph_of(t, c);
  return answer_why(t, look, before);
}

web_answer answer_slow_looks(std::span<const cluster_snapshot> looks, const std::string& job) {
  const auto answer = explain_slow(looks, job);
  return answer ? json_answer(answer->json()) : error_answer(answer.error());
}

result<double> seconds_of(const request_target& target, double otherwise, double least,
                          double most) {
  const auto* text = target.find("seconds");
  if (text == nullptr) return otherwise;
  double seconds = 0;
  const auto* end = text->data() + text->size();
  const auto [rest, failure] = std::from_chars(text->data(), end, seconds);
  if (failure != std::errc{} || rest != end || !(seconds >= least) || seconds > most)
    return error(error_code::usage,
                 fmt::format("seconds takes a number from {} to {}, not '{}'", least, most, *text));
  return seconds;
}

std::string job_of(const request_target& target) {
  const auto* job = target.find("job");
  return job != nullptr ? *job : std::string();
}

web_answer login_page(bool was_wrong) {
  return {401, html_type,
          fmt::format(
              "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
              "content=\"width=device-width,initial-scale=1\"><title>Troupe</title>"
              "<style>{}</style><h1>Troupe</h1><p>{}</p><form action=\"/\"><label>Token <input "
              "name=\"token\" type=\"password\" autocomplete=\"off\" required autofocus></label>"
              "<button>Look inside</button></form></html>\n",
              login_style,
              was_wrong ? "That is not the token of this page."
                        : "This page needs the token in the file that troupe serve was started "
                          "with.")};
}

const std::string& content_policy(std::string_view type) {
  static const std::string of_pictures =
      "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'";
  if (type == svg_type) return of_pictures;
  static const std::string policy = fmt::format(
      "default-src 'none'; script-src '{}'; style-src '{}' '{}'; img-src 'self' data:; connect-src "
      "'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
      policy_hash(between(serve_page, "<script>", "</script>")),
      policy_hash(between(serve_page, "<style>", "</style>")), policy_hash(login_style));
  return policy;
}

}  // namespace troupe
