#include "tools/troupe-tool/serve.hpp"

#include "tools/troupe-tool/answer.hpp"
#include "tools/troupe-tool/look_taker.hpp"
#include "tools/troupe-tool/serve_answer.hpp"
#include "tools/troupe-tool/serve_metrics.hpp"
#include "tools/troupe-tool/timeline.hpp"
#include "tools/troupe-tool/web_server.hpp"
#include "troupe/actors/inspect/inspect.hpp"
#include "troupe/actors/inspect/record_timeline.hpp"
#include "troupe/actors/net/discovery.hpp"
#include "troupe/actors/net/tls_context.hpp"
#include "troupe/runtime/insight/slow.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe {
namespace asio = boost::asio;

namespace {

// A look is served for so long after it has ended.
constexpr std::int64_t fresh_ns = 1'000'000'000;
constexpr std::int64_t before_ns = 10'000'000'000;  // the look before it, of why
constexpr std::int64_t before_least_ns = 100'000'000;
constexpr std::int64_t patience_ns = 3'000'000'000;  // above the time limit of a question
constexpr std::size_t kept_answers_max = 32, kept_bytes_max = std::size_t{64} << 20;  // of a look

// Of slow: looks are kept at once, and actors may be many.
constexpr double slow_seconds_max = 10;
constexpr std::size_t slow_looks_max = 100, slow_actors_max = 400'000;
constexpr std::int64_t slow_pause_ns = 20'000'000, slow_first_ns = 350'000'000;
// Of a timeline: some 400 bytes each, in memory.
constexpr std::size_t timeline_events_max = 200'000;
constexpr double timeline_seconds_max = 60;

constexpr std::int64_t gone_poll_ns = 200'000'000;  // of who waits for a long answer
constexpr auto end_poll = std::chrono::milliseconds(10);
constexpr int end_polls = 100;

// One long question at a time, on a thread of its own.
class long_questions {
 public:
  explicit long_questions(asio::io_context& io) : io_(io), thread_([this] { own_.run(); }) {}
  ~long_questions() {
    work_.reset();
    thread_.join();
  }
  long_questions(const long_questions&) = delete;
  long_questions& operator=(const long_questions&) = delete;

  bool is_busy() const noexcept { return is_busy_.load(); }
  // `ask` runs there, `done` on the thread of the server. False: another one is under way.
  bool begin(std::function<web_answer()> ask, std::function<void(web_answer)> done) {
    if (is_busy_.exchange(true)) return false;
    asio::post(own_, [this, ask = std::move(ask), done = std::move(done)] {
      web_answer answer;
      try {
        answer = ask();
      } catch (const std::exception& e) {
        answer = json_error(500, std::string("the answer could not be made: ") + e.what(),
                            "ask for fewer seconds");
      }
      is_busy_.store(false);
      asio::post(io_, [done, answer = std::move(answer)] { done(answer); });
    });
    return true;
  }

 private:
  asio::io_context& io_;
  asio::io_context own_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{own_.get_executor()};
  std::atomic<bool> is_busy_{false};
  std::thread thread_;
};

// Asks the cluster, once nobody else does.
using asker = std::function<result<cluster_snapshot>(const ask_options&)>;

// Set once nobody waits for the answer any more.
using stop_flag = std::shared_ptr<std::atomic<bool>>;

struct stopped : std::runtime_error {
  stopped() : std::runtime_error("whoever asked has gone") {}
};

std::string host_of_machine() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data())
                                                          : std::string();
}

web_answer answer_slow(const stop_flag& stop, const asker& ask_now, ask_options ask,
                       const std::string& job, double seconds) {
  ask.parts = ask_part::actors | ask_part::jobs;
  const auto end = steady_now_ns() + static_cast<std::int64_t>(seconds * 1e9);
  std::minstd_rand random(std::random_device{}());
  std::vector<cluster_snapshot> looks;
  auto most = slow_looks_max;
  while (steady_now_ns() < end || looks.size() < 2) {
    if (stop->load()) throw stopped();
    auto look = ask_now(ask);
    if (!look) return error_answer(look.error());
    const auto actors = std::max<std::size_t>(look->actors.size(), 1);
    if (actors > slow_actors_max / looks_least)
      return json_error(503,
                        fmt::format("{} actors are too many to look at often from here", actors),
                        "run troupe why --slow");
    most = std::clamp(slow_actors_max / actors, looks_least, slow_looks_max);
    looks.push_back(std::move(*look));
    ask.timeout_ns = std::min(ask.timeout_ns, slow_first_ns);  // who is slow is left out
    if (looks.size() >= most) break;
    const auto share = static_cast<std::int64_t>(seconds * 1e9 / static_cast<double>(most));
    const auto pause = std::max(slow_pause_ns, share);
    std::this_thread::sleep_for(std::chrono::nanoseconds(
        pause / 2 + static_cast<std::int64_t>(random() % 1000) * pause / 1000));
  }
  return answer_slow_looks(looks, job);
}

web_answer answer_timeline(const stop_flag& stop, const asker& ask_now, ask_options ask,
                           const std::string& job, double seconds) {
  ask.parts = ask_part::jobs;
  if (!job.empty()) {
    const auto c = ask_now(ask);
    if (!c) return error_answer(c.error());
    if (const auto known = check_job(job, c->jobs); !known) return error_answer(known.error());
  }
  record_options options;
  options.ask = ask;
  options.duration_ns = static_cast<std::int64_t>(seconds * 1e9);
  options.events_max = timeline_events_max;
  // It is called on this thread: record_cluster() ends, and the nodes forget it (RD-3).
  options.on_progress = [&stop](const record_progress&) {
    if (stop->load()) throw stopped();
  };
  const auto recording = record_cluster(options);
  if (!recording) return error_answer(recording.error());
  std::string file;
  const auto written =
      write_timeline(*recording, job, [&](std::string_view piece) { file += piece; });
  web_answer answer(200, "application/json", std::move(file));
  answer.more = fmt::format(
      "Content-Disposition: attachment; filename=\"troupe-timeline.json\"\r\n"
      "Troupe-Events-Left-Out: {}\r\n",
      written.lost);
  return answer;
}

class page_service {
 public:
  explicit page_service(const command& c)
      : command_(c),
        ask_(c.ask),
        server_(io_, [this](const web_question& q) { return answer(q); }),
        long_(io_),
        taker_([this] { return ask(ask_); },
               [this] { asio::post(io_, [this] { server_.wake_all(); }); }) {
    ask_.parts = ask_part::all;
  }

  int run() {
    if (auto ok = open(); !ok) {
      const auto o = answer_error(ok.error());
      std::fwrite(o.err.data(), 1, o.err.size(), stderr);
      return o.exit_code;
    }
    asio::signal_set ending(io_, SIGINT, SIGTERM);
    ending.async_wait([this, &ending](const auto& ec, int) {
      if (ec) return;
      ending.clear();  // a second one ends the process at once
      server_.begin_close();
    });
    std::signal(SIGPIPE, SIG_IGN);  // who reads stdout may go
    const auto url = fmt::format("{}://{}", tls_ ? "https" : "http", text_of(server_.endpoint()));
    const auto line = (command_.json ? fmt::format("{{\"url\":\"{}\"}}", url) : url) + "\n";
    if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size() ||
        std::fflush(stdout) != 0) {
      fmt::print(stderr, "troupe: the URL {} could not be written to standard output\n", url);
      return static_cast<int>(error_code::failed);
    }
    server_run();
    end();
    return 0;
  }

 private:
  // The loop goes on for as long as the server, which ends it by having nothing more to do.
  void server_run() {
    for (bool is_over = false; !is_over;) {
      try {
        io_.run();
        is_over = true;
      } catch (const std::exception&) {
        // No memory for one connection: it is gone, the others go on.
      }
    }
  }

  // A question that is under way ends with the process: nobody waits for its answer any more, and
  // nodes forget who does not ask on.
  void end() {
    for (int i = 0; i < end_polls; ++i) {
      if (taker_.stop() && !long_.is_busy()) return;
      std::this_thread::sleep_for(end_poll);
    }
    std::fflush(nullptr);
    std::_Exit(0);
  }

  result<void> open() {
    secret token;
    const auto& file =
        command_.page_token_file.empty() ? command_.ask.token_file : command_.page_token_file;
    if (!file.empty()) {
      auto read = read_token_file(file);
      if (!read) return read.error();
      token = *read;
    }
    if (auto ok = open_tls(); !ok) return ok;
    if (auto ok = server_.listen(command_.listen); !ok)
      return error(ok.error().code(), fmt::format("--http: {}", ok.error().message()));
    const auto at = server_.endpoint();
    const bool is_loopback = at.address().is_loopback();
    if (!is_loopback && token.empty() && !command_.ask.protect.insecure)
      return error(
          error_code::usage,
          fmt::format("--http {}: others than this machine reach that address, and anybody "
                      "could look: give --page-token-file FILE (or --token-file), listen "
                      "at 127.0.0.1, or give --insecure",
                      command_.listen));
    if (!is_loopback && !token.empty() && !tls_)
      fmt::print(stderr,
                 "troupe: the page and its token go unprotected over the network: give "
                 "--tls-certificate and --tls-key\n");
    std::array<unsigned char, 24> random{};
    if (RAND_bytes(random.data(), static_cast<int>(random.size())) != 1)
      return error(error_code::failed, "OpenSSL has no random bytes for the page's cookie");
    std::string session;
    for (const auto b : random) session += fmt::format("{:02x}", b);
    server_.start(door(token, fmt::format("troupe_{}", at.port()), session, is_loopback,
                       command_.listen.substr(0, command_.listen.rfind(':')), host_of_machine()),
                  tls_ ? &*tls_ : nullptr);
    return {};
  }

  // A certificate and its key protect the page; with the CA, too, the connections to nodes as well.
  result<void> open_tls() {
    auto& files = ask_.protect;
    if (!files.has_files()) return {};
    const auto usage = [](const std::string& what) { return error(error_code::usage, what); };
    if (files.certificate.empty() || files.key.empty())
      return usage(
          fmt::format("{} is missing: HTTPS needs --tls-certificate and --tls-key, each "
                      "with a file",
                      files.certificate.empty() ? "--tls-certificate" : "--tls-key"));
    if (!files.ca.empty()) {
      const auto made = tls_context::of_files(files);
      if (!made) return made.error();
    }
    for (const auto& [flag, file] :
         {std::pair("--tls-certificate", files.certificate), std::pair("--tls-key", files.key)})
      if (::access(file.c_str(), R_OK) != 0)
        return usage(fmt::format("{} {}: cannot read it: {}", flag, file, std::strerror(errno)));
    struct stat of{};
    if (::stat(files.key.c_str(), &of) == 0 && (of.st_mode & 077) != 0)
      return error(error_code::denied,
                   fmt::format("--tls-key {}: others may read or write it (mode {:o}); run: chmod "
                               "600 {}",
                               files.key, of.st_mode & 0777, files.key));
    tls_.emplace(asio::ssl::context::tls_server);
    tls_->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                      asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                      asio::ssl::context::no_tlsv1_1);
    SSL_CTX_set_session_cache_mode(tls_->native_handle(), SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(tls_->native_handle(), SSL_MODE_RELEASE_BUFFERS);
    // OpenSSL would ask on the terminal.
    SSL_CTX_set_default_passwd_cb(tls_->native_handle(), [](char*, int, int, void*) { return -1; });
    boost::system::error_code ec;
    tls_->use_certificate_chain_file(files.certificate, ec);
    if (ec)
      return usage(
          fmt::format("--tls-certificate {}: is no certificate in PEM format that can be "
                      "read ({})",
                      files.certificate, ec.message()));
    tls_->use_private_key_file(files.key, asio::ssl::context::pem, ec);
    if (ec)
      return usage(
          fmt::format("--tls-key {}: is no key in PEM format, without a passphrase, that "
                      "fits the certificate {} ({})",
                      files.key, files.certificate, ec.message()));
    if (files.ca.empty()) files.certificate.clear(), files.key.clear();
    return {};
  }

  // On either of the two threads that ask.
  result<cluster_snapshot> ask(const ask_options& how) {
    const std::lock_guard guard(asks_);
    return ask_cluster(how);
  }

  // --- answers -----------------------------------------------------------------------------------

  asio::awaitable<web_answer> answer(const web_question& q) {
    const auto& path = q.target.path;
    const auto kind = kind_of_page(path);
    if (path == "/healthz") co_return web_answer(200, "text/plain", "ok\n");
    if (kind == page_kind::none)
      co_return json_error(404, fmt::format("there is nothing at {}", path),
                           "the page is at /, and troupe serve --help lists what is beside it");
    if (kind == page_kind::fixed) co_return answer_fixed(path);
    if (auto wrong = wrong_key(q.target)) co_return std::move(*wrong);
    if (kind == page_kind::slow || kind == page_kind::timeline)
      co_return co_await answer_long(q, kind);
    const auto look = co_await fresh_look(q, kind == page_kind::two_looks);
    web_answer out;
    if (look == nullptr) {
      out = json_error(503, "the cluster did not answer in time",
                       "ask again; --timeout of troupe serve gives nodes longer");
      if (path == "/metrics") out = web_answer(200, metrics_type, no_look_yet);
    } else {
      out = answer_kept(q, *look);
    }
    if (path == "/readyz" && !q.is_admitted && out.status != 200)
      out = web_answer(503, "text/plain", "not ready\n");
    co_return out;
  }

  // What was made of this look once is not made again.
  web_answer answer_kept(const web_question& q, const cluster_look& look) {
    if (look.number != kept_of_) kept_.clear(), kept_bytes_ = 0, kept_of_ = look.number;
    const auto key = target_without_token(q.target);
    if (const auto at = kept_.find(key); at != kept_.end()) return at->second;
    const auto before = taker_.before();
    web_answer made;
    try {
      made = answer_look(q.target, look, before.get());
    } catch (const std::exception& e) {
      return json_error(500, std::string("the answer could not be made: ") + e.what(),
                        "ask for less: limit=N for actors, job=JOB for a graph");
    }
    const auto bytes = made.body != nullptr ? made.body->size() : 0;
    if (kept_.size() < kept_answers_max && kept_bytes_ + bytes <= kept_bytes_max) {
      kept_.emplace(key, made);
      kept_bytes_ += bytes;
    }
    return made;
  }

  // One that is not old, or nullptr. `two`: and there was one before it, not long ago, unless
  // nobody answers.
  asio::awaitable<look_taker::shared_look> fresh_look(const web_question& q, bool two) {
    const auto until = steady_now_ns() + 2 * ask_.timeout_ns + patience_ns;
    for (;;) {
      taker_.want();
      const auto now = steady_now_ns();
      auto last = taker_.last();
      const auto before = taker_.before();
      const bool has_before = last != nullptr && before != nullptr &&
                              now - before->ended_ns < before_ns + ask_.timeout_ns &&
                              last->began_ns - before->ended_ns > before_least_ns;
      if (last != nullptr && now - last->ended_ns <= fresh_ns &&
          (!two || !last->snapshot || has_before))
        co_return last;
      if (now >= until || !co_await server_.wait(*q.from, until)) co_return nullptr;
    }
  }

  asio::awaitable<web_answer> answer_long(const web_question& q, page_kind kind) {
    const bool is_slow = kind == page_kind::slow;
    const auto seconds = is_slow ? seconds_of(q.target, 2, 0.5, slow_seconds_max)
                                 : seconds_of(q.target, 1, 0.001, timeline_seconds_max);
    if (!seconds)
      co_return json_error(400, seconds.error().text(), "write seconds=2, or leave it out");
    const auto job = job_of(q.target);
    const auto made = std::make_shared<std::optional<web_answer>>();
    const auto stop = std::make_shared<std::atomic<bool>>(false);
    const auto from = q.from;
    const bool is_begun = long_.begin(
        [this, is_slow, job, stop, s = *seconds] {
          const asker ask_now = [this](const ask_options& o) { return ask(o); };
          return is_slow ? answer_slow(stop, ask_now, ask_, job, s)
                         : answer_timeline(stop, ask_now, ask_, job, s);
        },
        [this, made, from](web_answer a) {
          *made = std::move(a);
          server_.wake(*from);
        });
    if (!is_begun) {
      auto busy = json_error(429, "somebody records, or looks often, just now",
                             "ask again once that has ended");
      busy.more = "Retry-After: 2\r\n";
      co_return busy;
    }
    const auto until = steady_now_ns() + static_cast<std::int64_t>(*seconds * 1e9) +
                       10 * ask_.timeout_ns + 60'000'000'000;
    while (!*made && steady_now_ns() < until)
      if (!co_await server_.wait(*from, std::min(until, steady_now_ns() + gone_poll_ns)) ||
          web_server::has_gone(*from))
        break;
    stop->store(true);
    if (!*made)
      co_return json_error(503, "the cluster did not answer in time",
                           "ask again, for fewer seconds");
    co_return std::move(**made);
  }

  static constexpr const char* no_look_yet =
      "# HELP troupe_up Whether the cluster answered the last look.\n# TYPE troupe_up "
      "gauge\ntroupe_up 0\n";

  const command& command_;
  ask_options ask_;
  asio::io_context io_{1};
  std::optional<asio::ssl::context> tls_;
  std::mutex asks_;  // held while a question is under way
  web_server server_;
  long_questions long_;
  look_taker taker_;
  std::uint64_t kept_of_ = 0;
  std::size_t kept_bytes_ = 0;
  std::map<std::string, web_answer> kept_;
};

}  // namespace

int serve(const command& c) { return page_service(c).run(); }

}  // namespace troupe
