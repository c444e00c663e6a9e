#include "tools/troupe-tool/web_server.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>

namespace troupe {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

using web_error = boost::system::error_code;

struct web_connection {
  web_connection(asio::io_context& io, tcp::socket s, asio::ssl::context* tls_context)
      : socket(std::move(s)), event(io) {
    if (tls_context != nullptr) tls.emplace(socket, *tls_context);
  }
  tcp::socket socket;
  std::optional<asio::ssl::stream<tcp::socket&>> tls;
  asio::steady_timer event;
  beast::flat_buffer buffer{std::size_t{12} << 10};
  std::int64_t deadline_ns = std::numeric_limits<std::int64_t>::max();
  std::int64_t waits_since_ns = 0;  // for a request; 0: it has one
  std::int64_t began_ns = 0;        // when it began to wait for the request that it has, or has not
  bool is_admitted = false;         // the request that it has; false: it may be asked to give way
  bool is_waiting = false;          // its handler, in web_server::wait()
  bool is_dead = false;
};

namespace {

constexpr std::uint32_t head_limit = 8 << 10;
constexpr std::size_t read_bytes = 4 << 10, piece_bytes = 256 << 10;
constexpr std::int64_t head_ns = 5'000'000'000, idle_ns = 15'000'000'000, piece_ns = 10'000'000'000,
                       linger_ns = 1'000'000'000, close_ns = 2'000'000'000;
constexpr auto sweep_every = std::chrono::milliseconds(100);
constexpr auto rest = std::chrono::milliseconds(50);

constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

std::string text_of_view(beast::string_view v) { return {v.data(), v.size()}; }

web_answer refusal_of_error(const web_error& ec) {
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow)
    return json_error(431, "the head of a request has 8192 bytes at most",
                      "leave out headers, or cookies of other pages of this host");
  return json_error(400, "the request is none of HTTP/1.1: " + ec.message(),
                    "speak HTTP/1.1, and HTTPS where troupe serve has a certificate");
}

// 0: the client has gone, and nobody is there to be told.
bool is_of_client(const web_error& ec) {
  return ec.category() != asio::error::get_misc_category() &&
         ec.category() != asio::error::get_system_category() &&
         ec.category() != asio::error::get_ssl_category() &&
         ec.category() != asio::ssl::error::get_stream_category() &&
         ec != http::error::end_of_stream && ec != http::error::partial_message;
}

void close_now(web_connection& c) {
  web_error ignored;
  c.is_dead = true;
  c.socket.close(ignored);
  c.event.cancel();
}

// Counted while an answer is written, however that ends.
class counted_bytes {
 public:
  counted_bytes(std::uint64_t& all, std::uint64_t own) noexcept : all_(all), own_(own) {
    all_ += own_;
  }
  counted_bytes(const counted_bytes&) = delete;
  counted_bytes& operator=(const counted_bytes&) = delete;
  ~counted_bytes() { all_ -= own_; }

 private:
  std::uint64_t& all_;
  const std::uint64_t own_;
};

}  // namespace

web_server::web_server(asio::io_context& io, web_handler handler)
    : io_(io), handler_(std::move(handler)), acceptor_(io), accept_event_(io), sweep_timer_(io) {}
web_server::~web_server() = default;

result<void> web_server::listen(const std::string& where) { return listen_at(acceptor_, where); }

tcp::endpoint web_server::endpoint() const {
  web_error ignored;
  return acceptor_.local_endpoint(ignored);
}

void web_server::start(door d, asio::ssl::context* tls) {
  door_.emplace(std::move(d));
  tls_ = tls;
  asio::co_spawn(io_, accept_all(), asio::detached);
  asio::co_spawn(io_, sweep(), asio::detached);
}

void web_server::begin_close() {
  if (close_at_ns_ != 0) return;
  close_at_ns_ = steady_ns() + close_ns;
  web_error ignored;
  acceptor_.close(ignored);
  accept_event_.cancel();
  for (const auto& c : connections_)
    if (c->waits_since_ns != 0) close_now(*c);
  sweep_timer_.cancel();
}

// --- who comes -----------------------------------------------------------------------------------

void web_server::make_room() {
  std::shared_ptr<web_connection> oldest;
  for (const auto& c : connections_)
    if (!c->is_dead && !c->is_admitted && (oldest == nullptr || c->began_ns < oldest->began_ns))
      oldest = c;
  if (oldest != nullptr) close_now(*oldest);
}

asio::awaitable<void> web_server::accept_all() {
  while (close_at_ns_ == 0) {
    web_error ec;
    tcp::socket socket(io_);
    co_await acceptor_.async_accept(socket, asio::redirect_error(asio::use_awaitable, ec));
    if (close_at_ns_ != 0) break;
    if (ec) {  // no handles left, most likely: who waits for a request gives his back
      make_room();
      accept_event_.expires_after(rest);
      co_await accept_event_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
      continue;
    }
    while (connections_.size() >= connections_max && close_at_ns_ == 0) {
      make_room();
      accept_event_.expires_after(rest);  // until one has gone, or one more may have to
      co_await accept_event_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
    }
    if (close_at_ns_ != 0) break;
    std::shared_ptr<web_connection> c;
    try {
      socket.set_option(tcp::no_delay(true), ec);
      c = std::make_shared<web_connection>(io_, std::move(socket), tls_);
      connections_.insert(c);
      asio::co_spawn(io_, serve(c), asio::detached);
    } catch (const std::exception&) {
      connections_.erase(c);  // No memory for this one; the others go on.
    }
  }
}

asio::awaitable<void> web_server::sweep() {
  while (close_at_ns_ == 0 || !connections_.empty()) {
    web_error ec;
    sweep_timer_.expires_after(sweep_every);
    co_await sweep_timer_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
    const auto now = steady_ns();
    const bool is_over = close_at_ns_ != 0 && now >= close_at_ns_;
    for (const auto& c : connections_)
      if (!c->is_dead && (is_over || c->deadline_ns <= now)) close_now(*c);
  }
}

asio::awaitable<void> web_server::serve(std::shared_ptr<web_connection> c) {
  struct leaving {
    web_server& all;
    const std::shared_ptr<web_connection>& c;
    ~leaving() {
      close_now(*c);
      all.connections_.erase(c);
      all.accept_event_.cancel();
      if (all.close_at_ns_ != 0) all.sweep_timer_.cancel();
    }
  } at_the_end{*this, c};
  try {
    c->began_ns = c->waits_since_ns = steady_ns();
    if (c->tls) {
      web_error ec;
      c->deadline_ns = steady_ns() + head_ns;
      if (!co_await is_tls(*c)) co_return;
      co_await c->tls->async_handshake(asio::ssl::stream_base::server,
                                       asio::redirect_error(asio::use_awaitable, ec));
      if (ec) co_return;
    }
    while (!c->is_dead)
      if (!co_await serve_one(c)) break;
  } catch (const std::exception&) {
    // No memory for this answer: its connection ends, the others go on.
  }
}

// Whoever speaks HTTP here is told what to speak: the handshake would end without a word. False:
// the connection is over.
asio::awaitable<bool> web_server::is_tls(web_connection& c) {
  web_error ec;
  co_await c.socket.async_wait(tcp::socket::wait_read,
                               asio::redirect_error(asio::use_awaitable, ec));
  if (ec || c.is_dead) co_return false;
  constexpr unsigned char handshake = 22;  // RFC 8446, 5.1
  unsigned char first = handshake;
  (void)::recv(c.socket.native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (first == handshake) co_return true;
  c.tls.reset();
  c.waits_since_ns = 0;
  const auto refusal =
      json_error(400, "this is HTTPS, and the request came as plain HTTP",
                 fmt::format("open https://HOST:{}, with the host as it was", endpoint().port()));
  if (co_await write(c, refusal, false, false)) co_await linger(c);
  co_return false;
}

// --- a request -----------------------------------------------------------------------------------

asio::awaitable<std::size_t> web_server::read_some(web_connection& c, std::size_t bytes,
                                                   web_error& ec) {
  bytes = std::min(bytes, c.buffer.max_size() - c.buffer.size());
  if (bytes == 0) {  // a piece of a head that has no end
    ec = http::error::buffer_overflow;
    co_return 0;
  }
  const auto space = c.buffer.prepare(bytes);
  std::size_t n = 0;
  if (c.tls)
    n = co_await c.tls->async_read_some(space, asio::redirect_error(asio::use_awaitable, ec));
  else
    n = co_await c.socket.async_read_some(space, asio::redirect_error(asio::use_awaitable, ec));
  c.buffer.commit(n);
  co_return n;
}

std::string web_server::head_of(const web_answer& a, bool keeps) {
  if (const auto now = std::time(nullptr); now != date_at_) {
    date_at_ = now;
    date_ = fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(now));
  }
  const auto reason = http::obsolete_reason(static_cast<http::status>(a.status));
  auto head = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", a.status, text_of_view(reason), date_);
  if (a.status != 204)
    fmt::format_to(std::back_inserter(head), "Content-Type: {}\r\nContent-Length: {}\r\n", a.type,
                   a.body->size());
  fmt::format_to(std::back_inserter(head),
                 "Cache-Control: no-store\r\nContent-Security-Policy: {}\r\n"
                 "X-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n"
                 "Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n"
                 "{}Connection: {}\r\n\r\n",
                 content_policy(a.type), a.more, keeps ? "keep-alive" : "close");
  return head;
}

asio::awaitable<bool> web_server::write(web_connection& c, const web_answer& a, bool keeps,
                                        bool is_head) {
  const bool has_body = a.status != 204 && !is_head;
  const counted_bytes counted(writing_bytes_, has_body ? a.body->size() : 0);
  auto piece = head_of(a, keeps);
  std::size_t at = 0;
  for (;;) {
    const auto n = has_body ? std::min(piece_bytes, a.body->size() - at) : std::size_t{0};
    const std::array<asio::const_buffer, 2> parts{
        asio::buffer(piece), n > 0 ? asio::buffer(a.body->data() + at, n) : asio::const_buffer()};
    web_error ec;
    c.deadline_ns = steady_ns() + piece_ns;
    if (c.tls)
      co_await asio::async_write(*c.tls, parts, asio::redirect_error(asio::use_awaitable, ec));
    else
      co_await asio::async_write(c.socket, parts, asio::redirect_error(asio::use_awaitable, ec));
    if (ec || c.is_dead) co_return false;
    piece.clear();
    at += n;
    if (!has_body || at == a.body->size()) co_return true;
  }
}

// The client may still send; a socket that is closed with bytes unread takes the answer back.
asio::awaitable<void> web_server::linger(web_connection& c) {
  web_error ec;
  c.deadline_ns = steady_ns() + linger_ns;
  if (c.tls) co_await c.tls->async_shutdown(asio::redirect_error(asio::use_awaitable, ec));
  ec = {};
  c.socket.shutdown(tcp::socket::shutdown_send, ec);
  std::array<char, 4096> dropped{};
  while (!ec && !c.is_dead)
    co_await c.socket.async_read_some(asio::buffer(dropped),
                                      asio::redirect_error(asio::use_awaitable, ec));
}

web_answer web_server::refusal_of(admission a, const request_target& target) const {
  if (a == admission::wrong_host)
    return json_error(403, "this host name is none of the machine's own",
                      "open the page as http://localhost:PORT; for other names start troupe serve "
                      "with --http HOST:PORT and a token");
  if (a == admission::other_site)
    return json_error(403, "the question comes from another site", "open the page itself");
  bool was_wrong = a == admission::wrong_token;
  if (target.path == "/" && was_wrong && target.find("token") != nullptr) {
    // Mistyped, it is still close to a secret: it does not stay in the address.
    web_answer again(303, "text/plain", "the token is wrong\n");
    again.more = "Location: /?wrong\r\n";
    return again;
  }
  was_wrong = was_wrong || target.find("wrong") != nullptr;
  auto answer = target.path == "/"
                    ? login_page(was_wrong)
                    : json_error(401, was_wrong ? "the token is wrong" : "a token is needed",
                                 "send it as Authorization: Bearer TOKEN, or open /?token="
                                 "TOKEN once; it is in the file that troupe serve was "
                                 "started with");
  answer.more = "WWW-Authenticate: Bearer realm=\"troupe\"\r\n";
  return answer;
}

// Until it is whole. What the client has not begun is waited for longer.
asio::awaitable<web_error> web_server::read_head(web_connection& c, head_parser& p) {
  web_error ec;
  bool has_begun = c.buffer.size() > 0;
  c.began_ns = c.waits_since_ns = steady_ns();
  c.is_admitted = false;
  c.deadline_ns = c.waits_since_ns + (has_begun ? head_ns : idle_ns);
  while (!ec && !p.is_header_done()) {
    if (c.buffer.size() > 0) {
      if (!std::exchange(has_begun, true)) c.deadline_ns = steady_ns() + head_ns;
      const auto n = p.put(c.buffer.data(), ec);
      c.buffer.consume(n);
      if (!ec && (n > 0 || p.is_header_done())) continue;
      if (ec && ec != http::error::need_more) break;
      ec = {};
    }
    co_await read_some(c, read_bytes, ec);
  }
  c.deadline_ns = never;
  c.waits_since_ns = 0;
  co_return ec;
}

// Of a head that has come whole: what the handler says, or the door, or HTTP.
asio::awaitable<web_answer> web_server::answer_to_head(std::shared_ptr<web_connection> c,
                                                       const head_parser& p) {
  const auto& m = p.get();
  const auto method = text_of_view(m.method_string());
  if (m.version() != 11 && m.version() != 10)
    co_return json_error(505, "this server speaks HTTP/1.1", "speak HTTP/1.1");
  if (m.version() == 11 && m.count(http::field::host) != 1)
    co_return json_error(400, "a request of HTTP/1.1 has one Host", "send one");
  if (method != "GET" && method != "HEAD") {
    auto no = json_error(405, "GET and HEAD are allowed",
                         "ask by GET; what changes the cluster is the troupe command's");
    no.more = "Allow: GET, HEAD\r\n";
    co_return no;
  }
  if (!p.is_done()) co_return json_error(413, "requests have no body here", "leave it out");
  web_question q;
  const auto [authority, written] = split_absolute(text_of_view(m.target()));
  if (auto target = parse_target(written); target)
    q.target = std::move(*target);
  else
    co_return json_error(400, target.error().text(), "write it as PATH?KEY=VALUE&KEY=VALUE");
  request_head head;
  head.host = authority ? *authority : text_of_view(m[http::field::host]);  // RFC 9112, 3.2.2
  head.authorization = text_of_view(m[http::field::authorization]);
  head.cookie = text_of_view(m[http::field::cookie]);
  head.fetch_site = text_of_view(m["Sec-Fetch-Site"]);
  head.fetch_mode = text_of_view(m["Sec-Fetch-Mode"]);
  head.fetch_dest = text_of_view(m["Sec-Fetch-Dest"]);
  const auto admitted = door_->admit(head, q.target);
  if (admitted == admission::granted_by_query) co_return enter(q.target, head.fetch_site);
  const bool is_probe = q.target.path == "/healthz" || q.target.path == "/readyz";
  const bool is_stranger = admitted == admission::no_token || admitted == admission::wrong_token;
  q.is_admitted = c->is_admitted = admitted == admission::granted;
  q.from = c;
  if (!q.is_admitted && !(is_probe && is_stranger)) co_return refusal_of(admitted, q.target);
  co_return co_await handler_(q);
}

asio::awaitable<bool> web_server::serve_one(std::shared_ptr<web_connection> c) {
  if (close_at_ns_ != 0) co_return false;
  head_parser p;
  p.header_limit(head_limit);
  p.body_limit(std::numeric_limits<std::uint64_t>::max());  // no body is read
  const auto ec = co_await read_head(*c, p);
  if (c->is_dead || (ec && !is_of_client(ec))) co_return false;
  web_answer answer;
  if (ec)
    answer = refusal_of_error(ec);
  else
    answer = co_await answer_to_head(c, p);
  if (c->is_dead) co_return false;
  const bool keeps =
      !ec && p.get().keep_alive() && p.is_done() && c->is_admitted && close_at_ns_ == 0;
  const bool is_head = !ec && p.get().method() == http::verb::head;
  if (answer.body != nullptr && writing_bytes_ + answer.body->size() > answers_bytes_max) {
    answer = json_error(503, "other answers fill the memory of the server",
                        "ask again in a few seconds");
    answer.more = "Retry-After: 5\r\n";
  }
  const bool is_written = co_await write(*c, answer, keeps, is_head);
  if (is_written && !keeps) co_await linger(*c);
  co_return is_written&& keeps;
}

// The token was in the address: from now on a cookie takes its place, and the address is one
// without it.
web_answer web_server::enter(const request_target& target, const std::string& site) const {
  web_answer answer(303, "text/plain", "the token is right\n");
  // A browser keeps a Strict cookie back for as long as another site has led here, so that the page
  // itself leads on.
  if (!site.empty() && site != "none" && site != "same-origin")
    answer = web_answer(200, "text/html; charset=utf-8",
                        "<!doctype html><meta http-equiv=\"refresh\" content=\"0;url=/\"><p>The "
                        "token is right: <a href=\"/\">go on</a>.\n");
  else
    answer.more = "Location: " + target_without_token(target) + "\r\n";
  answer.more += fmt::format("Set-Cookie: {}; HttpOnly; SameSite=Strict; Path=/{}\r\n",
                             door_->cookie(), tls_ != nullptr ? "; Secure" : "");
  return answer;
}

// --- for handlers --------------------------------------------------------------------------------

asio::awaitable<bool> web_server::wait(web_connection& c, std::int64_t deadline_ns) {
  web_error ignored;
  c.event.expires_at(asio::steady_timer::time_point(std::chrono::nanoseconds(deadline_ns)));
  c.is_waiting = true;
  co_await c.event.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  c.is_waiting = false;
  co_return !c.is_dead;
}

bool web_server::has_gone(web_connection& c) {
  pollfd p{c.socket.native_handle(), POLLRDHUP, 0};
  return c.is_dead || (::poll(&p, 1, 0) == 1 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0);
}

void web_server::wake(web_connection& c) { c.event.cancel(); }

void web_server::wake_all() {
  for (const auto& c : connections_)
    if (c->is_waiting) c->event.cancel();
}

}  // namespace troupe
