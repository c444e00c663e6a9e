#pragma once
// From a path and a look to what `troupe serve` answers. Pure; asking, recording and waiting are
// serve.cpp's part.
//
// SE-8  JSON is that of the verb with --json. An error is {"error": .., "what_to_do": ..}, one line
//       each, with a status that fits: 400 a query that is wrong, 404 no such path, job or actor,
//       503 no cluster.
//
// Threading: pure functions. Ownership: bodies are shared and never change.

#include "tools/troupe-tool/serve_look.hpp"
#include "tools/troupe-tool/serve_request.hpp"
#include "troupe/schema/error.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

struct web_answer {
  web_answer() = default;
  web_answer(unsigned s, std::string t, std::string b)
      : status(s), type(std::move(t)), body(std::make_shared<const std::string>(std::move(b))) {}
  unsigned status = 503;
  std::string type;
  std::shared_ptr<const std::string> body;
  std::string more;  // lines of the head
};

enum class page_kind : std::uint8_t {
  none,       // there is nothing at that path
  fixed,      // needs no look
  look,       // of a look that is not old
  two_looks,  // and of the one before it
  slow,       // of many looks
  timeline,   // of a recording
};
page_kind kind_of_page(std::string_view path) noexcept;

// What is said where the query has a key that the path does not know; nothing: it has none.
std::optional<web_answer> wrong_key(const request_target& target);

web_answer json_error(unsigned status, std::string_view error, std::string_view what_to_do);
// Of an error of the cluster, or of a question about a job.
web_answer error_answer(const error& e);

// Of a path that is `fixed`, but for /healthz and /readyz.
web_answer answer_fixed(const std::string& path);
// `before`: nullptr, or an earlier look with a snapshot. Without a snapshot in `look`: 503 with its
// reason; /metrics says so in its numbers.
web_answer answer_look(const request_target& target, const cluster_look& look,
                       const cluster_look* before);
web_answer answer_slow_looks(std::span<const cluster_snapshot> looks, const std::string& job);

// Of `slow` and `timeline`: the key `seconds`, or `otherwise`; nothing outside of least to most.
result<double> seconds_of(const request_target& target, double otherwise, double least,
                          double most);
std::string job_of(const request_target& target);

// What is shown to who has no token: a form that takes it.
web_answer login_page(bool was_wrong);
// The Content-Security-Policy of an answer of that type. A picture has its style inside, so that it
// may have one, and nothing else; the policy of all others names the page's own script and styles.
const std::string& content_policy(std::string_view type);

}  // namespace troupe
