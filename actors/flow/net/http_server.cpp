#include "troupe/actors/flow/net/http_server.hpp"

#include "troupe/actors/flow/net/sockets.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <ctime>
#include <deque>
#include <optional>
#include <set>
#include <thread>

namespace troupe {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

namespace {

constexpr std::uint32_t head_bytes_max = 16 << 10;
constexpr std::size_t head_read_bytes = 4 << 10, body_read_bytes = 64 << 10;
// Requests that wait for the topology's thread, so that it need not wait for the server's.
constexpr std::uint64_t credits_max = 64;
constexpr std::uint32_t items_a_turn = 32;
constexpr auto accept_rest = std::chrono::milliseconds(50);
// An answer to somebody who still sends: as long is read on, so that the answer is not taken back.
constexpr std::int64_t linger_ns = 2'000'000'000;
constexpr const char* plain = "text/plain";

using error_code_of_asio = boost::system::error_code;
using request_parser = http::request_parser<http::string_body>;

void count(std::atomic<std::uint64_t>& c, std::uint64_t by = 1) noexcept {
  c.fetch_add(by, std::memory_order_relaxed);
}

// What the server says itself. Status 0: nothing. No aggregate, since GCC 12 destroys those twice
// that a coroutine makes within an expression (runtime/flow/generator.hpp).
struct refusal {
  refusal() = default;
  refusal(std::uint32_t s, std::string w, std::string m = {})
      : status(s), why(std::move(w)), more(std::move(m)) {}
  std::uint32_t status = 0;
  std::string why, more;  // more: lines of the head
};

struct written_answer {
  std::uint32_t status = 503;
  std::string content_type, body;
};

// Counted against buffer_bytes_max.
class held_bytes {
 public:
  explicit held_bytes(std::atomic<std::uint64_t>& all) noexcept : all_(&all) {}
  held_bytes(held_bytes&& o) noexcept : all_(o.all_), own_(std::exchange(o.own_, 0)) {}
  held_bytes& operator=(held_bytes&&) = delete;
  ~held_bytes() { all_->fetch_sub(own_, std::memory_order_relaxed); }
  bool grow_to(std::uint64_t bytes, std::uint64_t most) noexcept {
    const auto more = bytes > own_ ? bytes - own_ : 0;
    if (all_->load(std::memory_order_relaxed) + more > most) return false;
    all_->fetch_add(more, std::memory_order_relaxed);
    own_ += more;
    return true;
  }

 private:
  std::atomic<std::uint64_t>* all_;
  std::uint64_t own_ = 0;
};

struct http_connection;
using connection_handle = std::shared_ptr<http_connection>;

// A path, and the source that takes its requests.
struct http_route {
  std::string path, allow;
  std::vector<std::string> methods, headers;
  // Of the server's thread.
  std::uint64_t credits = 0;
  bool is_open = true;
  // No room: for what they have whole, and for going on to read.
  std::deque<connection_handle> parked, parked_reading;
  // Of the source's thread: what was posted comes out of `inbox` into `taken`. A context of its own
  // is a queue that a thread can sleep at.
  struct waiting {
    http_request request;
    held_bytes bytes;
  };
  asio::io_context inbox{1};
  asio::executor_work_guard<asio::io_context::executor_type> inbox_work{inbox.get_executor()};
  std::deque<waiting> taken;
  std::atomic<bool> has_ended{false};  // its source, or its topology
};

struct http_connection {
  http_connection(http_server::core& c, tcp::socket s);
  http_server::core& core;
  tcp::socket socket;
  asio::steady_timer event;  // never goes off: it is cancelled when something has happened
  beast::flat_buffer buffer{head_bytes_max + body_read_bytes};
  std::shared_ptr<const std::string> peer;
  std::int64_t deadline_ns = never_ns;
  std::uint64_t number = 0;  // of the request under way
  std::optional<written_answer> answer;
  bool is_idle = false;  // between two requests
  bool is_late = false;  // the deadline has come
  bool is_dead = false;  // to end at once
};

std::string_view view_of(beast::string_view v) noexcept { return {v.data(), v.size()}; }

std::string lower(std::string_view text) {
  std::string all(text);
  for (auto& c : all)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return all;
}

// Of a program's text only what can stand in one line of a head.
bool is_one_line(std::string_view text) noexcept {
  return std::ranges::all_of(
      text, [](char c) { return c == '\t' || static_cast<unsigned char>(c) >= ' '; });
}

}  // namespace

struct http_reply::state {
  std::weak_ptr<http_server::core> core;
  std::weak_ptr<http_connection> connection;
  std::uint64_t number = 0;
  std::atomic<bool> is_answered{false};

  ~state() {
    if (!is_answered.exchange(true))
      send({503, plain, "the request was given up before it was answered\n"});
  }
  void send(written_answer a);
};

struct http_server::core : std::enable_shared_from_this<http_server::core> {
  explicit core(http_server_options o) : options(std::move(o)) {}

  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  const http_server_options options;
  std::string where;
  std::thread thread;
  std::vector<std::weak_ptr<http_route>> claimed;  // of who describes topologies
  std::atomic<bool> has_ended{false};
  std::atomic<std::uint64_t> body_bytes{0};  // that were read and not taken
  std::atomic<std::uint64_t> connections_taken{0}, open{0}, requests{0}, answered{0}, refused{0},
      cut{0};
  // Of the server's thread.
  tcp::acceptor acceptor{io};
  asio::steady_timer accept_event{io}, sweep_timer{io}, end_timer{io};
  std::vector<std::shared_ptr<http_route>> routes;
  std::shared_ptr<http_route> health = std::make_shared<http_route>();  // the server's own
  std::set<connection_handle> connections;
  bool is_closing = false;
  std::time_t date_at = 0;
  std::string date;

  std::int64_t timeout_ns() const noexcept { return options.timeout.ns; }
  void start();
  void begin_close();
  void add_route(std::shared_ptr<http_route> r);
  void close_route(http_route& r);
  void give_credits(http_route& r, std::uint64_t n);
  std::shared_ptr<http_route> find(std::string_view path) const;
  void wake(http_connection& c) { c.event.cancel(); }
  const std::string& date_text();

  void take(tcp::socket socket);
  asio::awaitable<void> accept_all();
  asio::awaitable<void> linger(http_connection& c);
  asio::awaitable<void> sweep();
  asio::awaitable<void> serve(connection_handle c);
  // One request and its answer. False: the connection is to end.
  asio::awaitable<bool> serve_one(http_connection& c, const connection_handle& handle);
  asio::awaitable<error_code_of_asio> read_head(http_connection& c, request_parser& p);
  asio::awaitable<bool> wait_for_room(http_connection& c, const connection_handle& handle,
                                      http_route& r, bool is_whole);
  asio::awaitable<bool> write(http_connection& c, const written_answer& a, bool keeps, bool is_head,
                              std::string_view more = {});  // lines of the head
  asio::awaitable<refusal> read_body(http_connection& c, const connection_handle& handle,
                                     http_route& r, request_parser& p, held_bytes& bytes,
                                     error_code_of_asio& ec);
  asio::awaitable<bool> have_answered(http_connection& c, const connection_handle& handle,
                                      http_route& route, request_parser& p, held_bytes bytes);
  refusal refusal_of(const http_connection& c, const error_code_of_asio& ec, const char* part);
  refusal refusal_of(const request_parser& p, const http_route* r);
  asio::awaitable<bool> refuse(http_connection& c, const refusal& no, bool keeps, bool is_head);
  asio::awaitable<std::size_t> read_some(http_connection& c, std::size_t bytes,
                                         error_code_of_asio& ec);
  asio::awaitable<void> wait_event(http_connection& c);
};

namespace {
http_connection::http_connection(http_server::core& c, tcp::socket s)
    : core(c), socket(std::move(s)), event(c.io) {}
}  // namespace

void http_reply::state::send(written_answer a) {
  // The core outlives what it owns.
  const auto keeps_core = core.lock();
  if (keeps_core == nullptr) return;
  auto c = connection.lock();
  if (c == nullptr) return;
  asio::post(keeps_core->io, [c = std::move(c), n = number, a = std::move(a)]() mutable {
    if (c->number != n || c->answer) return;
    c->answer = std::move(a);
    c->event.cancel();
  });
}

bool http_reply::answer(std::uint32_t status, std::string content_type, std::string body) const {
  if (state_ == nullptr || state_->is_answered.exchange(true)) return false;
  state_->send({status, std::move(content_type), std::move(body)});
  return true;
}
bool http_reply::is_answered() const noexcept {
  return state_ != nullptr && state_->is_answered.load();
}

std::string_view http_request::path() const noexcept {
  return std::string_view(target).substr(0, target.find('?'));
}
std::string_view http_request::query() const noexcept {
  const auto at = target.find('?');
  return at == target.npos ? std::string_view() : std::string_view(target).substr(at + 1);
}
std::string_view http_request::header(std::string_view name) const noexcept {
  for (const auto& [n, v] : headers)
    if (n == name) return v;
  return {};
}
std::size_t http_request::size_bytes() const noexcept {
  auto bytes = method.size() + target.size() + body.size() + peer.size();
  for (const auto& [n, v] : headers) bytes += n.size() + v.size() + sizeof headers.front();
  return bytes;
}

// --- the server's thread -------------------------------------------------------------------------

void http_server::core::start() {
  health->methods = {"GET", "HEAD"};
  health->allow = "GET, HEAD";
  asio::co_spawn(io, accept_all(), asio::detached);
  asio::co_spawn(io, sweep(), asio::detached);
  thread = std::thread([this] {
    for (bool is_over = false; !is_over;) {
      try {
        io.run();
        is_over = true;
      } catch (const std::exception&) {
        // No memory for one connection: it is gone, the others go on.
      }
    }
  });
}

void http_server::core::take(tcp::socket socket) {
  error_code_of_asio ec;
  const auto from = socket.remote_endpoint(ec);
  if (ec) return;  // it is gone already
  socket.set_option(tcp::no_delay(true), ec);
  auto c = std::make_shared<http_connection>(*this, std::move(socket));
  c->peer = std::make_shared<const std::string>(text_of(from));
  connections.insert(c);
  count(connections_taken);
  open.store(connections.size(), std::memory_order_relaxed);
  asio::co_spawn(io, serve(std::move(c)), asio::detached);
}

asio::awaitable<void> http_server::core::accept_all() {
  while (!is_closing) {
    error_code_of_asio ec;
    if (connections.size() >= options.connections_max) {
      accept_event.expires_at(asio::steady_timer::time_point::max());
      co_await accept_event.async_wait(asio::redirect_error(asio::use_awaitable, ec));
      continue;
    }
    auto socket = co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, ec));
    if (is_closing) break;
    if (ec) {  // no handles left, most likely
      accept_event.expires_after(accept_rest);
      co_await accept_event.async_wait(asio::redirect_error(asio::use_awaitable, ec));
      continue;
    }
    bool has_memory = true;
    try {
      take(std::move(socket));
    } catch (const std::bad_alloc&) {
      has_memory = false;  // for that one; the others go on
    }
    if (has_memory) continue;
    accept_event.expires_after(accept_rest);
    co_await accept_event.async_wait(asio::redirect_error(asio::use_awaitable, ec));
  }
}

// Deadlines are looked at some times within a timeout, which costs a request nothing.
asio::awaitable<void> http_server::core::sweep() {
  const auto every =
      std::chrono::nanoseconds(std::clamp<std::int64_t>(timeout_ns() / 8, 1'000'000, 250'000'000));
  while (!is_closing || !connections.empty()) {
    error_code_of_asio ec;
    sweep_timer.expires_after(every);
    co_await sweep_timer.async_wait(asio::redirect_error(asio::use_awaitable, ec));
    const auto now = steady_ns();
    for (const auto& c : connections) {
      if (c->deadline_ns > now) continue;
      // Its deadline stays: what was done already is not cancelled, and what follows it is then.
      c->is_late = true;
      c->socket.cancel(ec);
    }
  }
}

void http_server::core::begin_close() {
  is_closing = true;
  health->is_open = false;
  error_code_of_asio ignored;
  acceptor.close(ignored);
  accept_event.cancel();
  for (const auto& r : routes) {
    for (const auto& c : r->parked) wake(*c);
    for (const auto& c : r->parked_reading) wake(*c);
  }
  for (const auto& c : connections)
    if (c->is_idle) c->is_dead = true, c->socket.close(ignored);
  if (connections.empty()) return sweep_timer.cancel(), void();
  end_timer.expires_after(std::chrono::nanoseconds(timeout_ns()));
  end_timer.async_wait([this](const error_code_of_asio& ec) {
    if (ec) return;
    error_code_of_asio e;
    for (const auto& c : connections) {
      c->is_dead = true;
      c->socket.close(e);
      wake(*c);
    }
  });
}

void http_server::core::add_route(std::shared_ptr<http_route> r) {
  std::erase_if(routes, [&](const auto& old) { return old->path == r->path && !old->is_open; });
  routes.push_back(std::move(r));
}

// Its source is gone: nobody else uses the inbox now.
void http_server::core::close_route(http_route& r) {
  r.is_open = false;
  for (const auto& c : std::exchange(r.parked, {})) wake(*c);
  for (const auto& c : std::exchange(r.parked_reading, {})) wake(*c);
  r.inbox.poll();
  r.taken.clear();
}

void http_server::core::give_credits(http_route& r, std::uint64_t n) {
  r.credits += n;
  auto left = r.credits;
  for (; left > 0 && !r.parked.empty(); --left) {
    wake(*r.parked.front());
    r.parked.pop_front();
  }
  if (left == 0) return;
  for (const auto& c : std::exchange(r.parked_reading, {})) wake(*c);
}

std::shared_ptr<http_route> http_server::core::find(std::string_view path) const {
  std::shared_ptr<http_route> found;
  for (const auto& r : routes)
    if (r->path == path && (found == nullptr || !found->is_open)) found = r;
  return found;
}

const std::string& http_server::core::date_text() {
  if (const auto now = std::time(nullptr); now != date_at) {
    date_at = now;
    date = fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(now));
  }
  return date;
}

// --- a connection --------------------------------------------------------------------------------

asio::awaitable<void> http_server::core::wait_event(http_connection& c) {
  error_code_of_asio ignored;
  c.event.expires_at(asio::steady_timer::time_point::max());
  co_await c.event.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

asio::awaitable<std::size_t> http_server::core::read_some(http_connection& c, std::size_t bytes,
                                                          error_code_of_asio& ec) {
  bytes = std::min(bytes, c.buffer.max_size() - c.buffer.size());
  if (bytes == 0) {  // a piece of a head that has no end
    ec = http::error::buffer_overflow;
    co_return 0;
  }
  const auto n = co_await c.socket.async_read_some(c.buffer.prepare(bytes),
                                                   asio::redirect_error(asio::use_awaitable, ec));
  c.buffer.commit(n);
  co_return n;
}

asio::awaitable<error_code_of_asio> http_server::core::read_head(http_connection& c,
                                                                 request_parser& p) {
  error_code_of_asio ec;
  while (!p.is_header_done()) {
    if (c.buffer.size() > 0) {
      c.is_idle = false;
      const auto n = p.put(c.buffer.data(), ec);
      c.buffer.consume(n);
      if (ec && ec != http::error::need_more) co_return ec;
      if (!ec && (n > 0 || p.is_header_done())) continue;
      ec = {};
    }
    co_await read_some(c, head_read_bytes, ec);
    if (!ec && c.is_late) ec = asio::error::operation_aborted;
    if (ec) co_return ec;
  }
  co_return ec;
}

// False: there will be none.
asio::awaitable<bool> http_server::core::wait_for_room(http_connection& c,
                                                       const connection_handle& handle,
                                                       http_route& r, bool is_whole) {
  if (r.credits > 0 && r.is_open) co_return !is_closing;
  const auto left = c.deadline_ns == never_ns ? timeout_ns() : c.deadline_ns - steady_ns();
  c.deadline_ns = never_ns;  // this is not the client's time
  for (bool is_first = true; r.credits == 0 && r.is_open && !is_closing && !c.is_dead;
       is_first = false) {
    auto& parked = is_whole ? r.parked : r.parked_reading;
    // Who was woken, and found that others were faster, comes first then.
    if (is_first)
      parked.push_back(handle);
    else
      parked.push_front(handle);
    co_await wait_event(c);
    if (c.is_dead || is_closing) std::erase(parked, handle);
  }
  c.deadline_ns = steady_ns() + std::max<std::int64_t>(left, 0);
  co_return r.is_open && !is_closing && !c.is_dead;
}

asio::awaitable<bool> http_server::core::write(http_connection& c, const written_answer& a,
                                               bool keeps, bool is_head, std::string_view more) {
  const auto status = a.status >= 200 && a.status <= 599 ? a.status : 500;
  const bool has_body = status != 204 && status != 304;
  auto reason = view_of(http::obsolete_reason(static_cast<http::status>(status)));
  if (reason.starts_with('<')) reason = {};  // a number that has no name
  auto head = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", status, reason, date_text());
  if (has_body && !a.content_type.empty() && is_one_line(a.content_type))
    fmt::format_to(std::back_inserter(head), "Content-Type: {}\r\n", a.content_type);
  if (has_body) fmt::format_to(std::back_inserter(head), "Content-Length: {}\r\n", a.body.size());
  fmt::format_to(std::back_inserter(head), "{}Connection: {}\r\n\r\n", more,
                 keeps ? "keep-alive" : "close");
  const std::array<asio::const_buffer, 2> parts{
      asio::buffer(head), has_body && !is_head ? asio::buffer(a.body) : asio::const_buffer()};
  error_code_of_asio ec;
  c.deadline_ns = steady_ns() + timeout_ns();
  co_await asio::async_write(c.socket, parts, asio::redirect_error(asio::use_awaitable, ec));
  co_return !ec;
}

asio::awaitable<bool> http_server::core::refuse(http_connection& c, const refusal& no, bool keeps,
                                                bool is_head) {
  count(refused);
  c.is_late = false;
  const written_answer a{no.status, plain, no.why + "\n"};
  const bool is_written = co_await write(c, a, keeps, is_head, no.more);
  if (!keeps && is_written) co_await linger(c);
  co_return is_written&& keeps;
}

// The client may still send; a socket that is closed with bytes unread takes the answer back.
asio::awaitable<void> http_server::core::linger(http_connection& c) {
  error_code_of_asio ec;
  c.is_late = false;
  c.socket.shutdown(tcp::socket::shutdown_send, ec);
  c.deadline_ns = steady_ns() + std::min(linger_ns, timeout_ns());
  c.buffer.clear();
  while (!ec && !c.is_dead && !c.is_late) {
    co_await read_some(c, body_read_bytes, ec);
    c.buffer.clear();
  }
}

// Of a request that did not come as it should. Status 0: there is nobody to tell it.
refusal http_server::core::refusal_of(const http_connection& c, const error_code_of_asio& ec,
                                      const char* part) {
  if (c.is_late) return {408, fmt::format("the {} of the request came too slowly", part)};
  if (ec == http::error::body_limit)
    return {413, fmt::format("a body has {} bytes at most", options.body_bytes_max)};
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow)
    return {431, fmt::format("the head of a request has {} bytes at most", head_bytes_max)};
  if (ec.category() == asio::error::get_misc_category() ||
      ec.category() == asio::error::get_system_category()) {
    count(cut);
    return {};
  }
  return {400, fmt::format("the {} is none of HTTP/1.1: {}", part, ec.message())};
}

// Of a request that came as it should, and is not for a topology. Status 0: it is.
refusal http_server::core::refusal_of(const request_parser& p, const http_route* r) {
  const auto& m = p.get();
  if (m.version() != 11 && m.version() != 10) return {505, "this server speaks HTTP/1.1"};
  if (m.version() == 11 && m.count(http::field::host) != 1)
    return {400, "a request of HTTP/1.1 has one Host"};
  if (r == nullptr) return {404, "there is nothing at this path"};
  if (std::ranges::find(r->methods, view_of(m.method_string())) == r->methods.end())
    return {405, r->allow + " is allowed", "Allow: " + r->allow + "\r\n"};
  if (is_closing) return {503, "the server stops"};
  if (!r->is_open) return {503, "what answers here has ended"};
  return {};
}

// Its body, as far as it is not here. Status 0 and no error: it is whole.
asio::awaitable<refusal> http_server::core::read_body(http_connection& c,
                                                      const connection_handle& handle,
                                                      http_route& r, request_parser& p,
                                                      held_bytes& bytes, error_code_of_asio& ec) {
  constexpr std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
  c.deadline_ns = steady_ns() + timeout_ns();
  if (!p.is_done() && c.buffer.size() == 0 &&
      beast::iequals(p.get()[http::field::expect], "100-continue"))
    co_await asio::async_write(c.socket, asio::buffer(go_on),
                               asio::redirect_error(asio::use_awaitable, ec));
  p.eager(true);
  while (!ec && !p.is_done()) {
    if (!co_await wait_for_room(c, handle, r, false)) co_return refusal_of(p, &r);
    if (c.buffer.size() > 0) {
      const auto n = p.put(c.buffer.data(), ec);
      c.buffer.consume(n);
      if (!bytes.grow_to(p.get().body().size(), options.buffer_bytes_max))
        co_return refusal{503, "the server has no memory for this body now", "Retry-After: 1\r\n"};
      if (!ec && n > 0) continue;
      if (ec == http::error::need_more) ec = {};
      if (ec) break;
    }
    co_await read_some(c, body_read_bytes, ec);
    if (!ec && c.is_late) ec = asio::error::operation_aborted;
  }
  if (ec) co_return refusal_of(c, ec, "body");
  if (!co_await wait_for_room(c, handle, r, true)) co_return refusal_of(p, &r);
  co_return refusal{};
}

// Gives it to the topology, waits for its answer, and writes that.
asio::awaitable<bool> http_server::core::have_answered(http_connection& c,
                                                       const connection_handle& handle,
                                                       http_route& route, request_parser& p,
                                                       held_bytes bytes) {
  auto& m = p.get();
  const auto method = view_of(m.method_string());
  const bool is_head = method == "HEAD";
  --route.credits;
  c.deadline_ns = never_ns;
  c.answer.reset();
  auto reply = std::make_shared<http_reply::state>();
  reply->core = weak_from_this();
  reply->connection = handle;
  reply->number = ++c.number;
  http_route::waiting w{{std::string(method),
                         std::string(view_of(m.target())),
                         std::move(m.body()),
                         *c.peer,
                         {},
                         http_reply(std::move(reply))},
                        std::move(bytes)};
  for (const auto& name : route.headers)
    if (const auto at = m.find(name); at != m.end())
      w.request.headers.emplace_back(name, view_of(at->value()));
  count(requests);
  asio::post(route.inbox,
             [&route, w = std::move(w)]() mutable { route.taken.push_back(std::move(w)); });
  while (!c.answer && !c.is_dead) co_await wait_event(c);
  const bool keeps = m.keep_alive() && !is_closing;
  if (!c.answer || !co_await write(c, *c.answer, keeps, is_head)) {
    count(cut);
    co_return false;
  }
  count(answered);
  if (!keeps) co_await linger(c);
  co_return keeps;
}

asio::awaitable<bool> http_server::core::serve_one(http_connection& c,
                                                   const connection_handle& handle) {
  if (is_closing && c.buffer.size() == 0) co_return false;
  request_parser p;
  p.header_limit(head_bytes_max);
  p.body_limit(options.body_bytes_max);
  c.is_late = false;
  c.is_idle = c.buffer.size() == 0;
  c.deadline_ns = steady_ns() + timeout_ns();
  auto ec = co_await read_head(c, p);
  const bool was_idle = std::exchange(c.is_idle, false);
  if (c.is_dead || (ec && was_idle)) co_return false;  // it has nothing more to ask
  refusal no;
  if (ec) {
    no = refusal_of(c, ec, "head");
    co_return no.status != 0 && co_await refuse(c, no, false, false);
  }
  auto& m = p.get();
  const auto target = view_of(m.target());
  const auto path = target.substr(0, target.find('?'));
  const bool is_head = view_of(m.method_string()) == "HEAD";
  // A body that nobody wants is not read: then the connection ends with the answer.
  const bool keeps = m.keep_alive() && !is_closing && p.is_done();
  const auto route = path == "/healthz" ? health : find(path);
  no = refusal_of(p, route.get());
  if (no.status != 0) co_return co_await refuse(c, no, keeps, is_head);
  if (route == health) {
    const written_answer fine{200, plain, "ok\n"};
    const bool is_written = co_await write(c, fine, keeps, is_head);
    if (is_written && !keeps) co_await linger(c);
    co_return is_written&& keeps;
  }
  {
    held_bytes bytes(body_bytes);
    no = co_await read_body(c, handle, *route, p, bytes, ec);
    if (no.status == 0 && !ec && !c.is_dead)
      co_return co_await have_answered(c, handle, *route, p, std::move(bytes));
    m.body() = {};
  }
  co_return no.status != 0 && !c.is_dead && co_await refuse(c, no, false, is_head);
}

asio::awaitable<void> http_server::core::serve(connection_handle c) {
  // However it ends.
  struct leaves {
    http_server::core& all;
    const connection_handle& c;
    ~leaves() {
      error_code_of_asio ignored;
      c->socket.close(ignored);
      all.connections.erase(c);
      all.open.store(all.connections.size(), std::memory_order_relaxed);
      all.accept_event.cancel();
      if (!all.is_closing || !all.connections.empty()) return;
      all.sweep_timer.cancel();
      all.end_timer.cancel();
    }
  } at_the_end{*this, c};
  while (!c->is_dead)
    if (!co_await serve_one(*c, c)) break;
}

// --- what programs call --------------------------------------------------------------------------

result<http_server> http_server::open(http_server_options options) {
  auto c = std::make_shared<core>(std::move(options));
  if (c->options.connections_max == 0 || c->options.timeout.ns <= 0)
    return error(error_code::usage, "http_server: .connections_max and .timeout are above 0");
  if (auto ok = listen_at(c->acceptor, c->options.listen); !ok) return std::move(ok.error());
  error_code_of_asio ec;
  c->where = text_of(c->acceptor.local_endpoint(ec));
  try {
    c->start();
  } catch (const std::system_error& e) {
    return error(error_code::failed, fmt::format("the server has no thread: {}", e.what()));
  }
  return http_server(std::move(c));
}

http_server::http_server(std::shared_ptr<core> c) noexcept : core_(std::move(c)) {}
http_server::http_server(http_server&&) noexcept = default;
http_server& http_server::operator=(http_server&& o) noexcept {
  if (this == &o) return *this;
  close();
  core_ = std::move(o.core_);
  return *this;
}
http_server::~http_server() { close(); }

const std::string& http_server::address() const noexcept { return core_->where; }
http_counts http_server::counts() const noexcept {
  const auto& c = *core_;
  return {c.connections_taken.load(), c.open.load(),    c.requests.load(),
          c.answered.load(),          c.refused.load(), c.cut.load()};
}

void http_server::close() {
  if (core_ == nullptr || !core_->thread.joinable()) return;
  asio::post(core_->io, [c = core_.get()] {
    c->begin_close();
    c->work.reset();
  });
  core_->thread.join();
  core_->has_ended.store(true);
}

namespace {

// A topology's hold on a path. The server sees no more of it when this is gone.
struct http_claim {
  http_claim(std::shared_ptr<http_server::core> c, std::shared_ptr<http_route> r)
      : core(std::move(c)), route(std::move(r)) {}
  ~http_claim() { give_up(); }
  http_claim(const http_claim&) = delete;
  http_claim& operator=(const http_claim&) = delete;
  // A server that has ended runs nothing more: the requests in the inbox end with it.
  void give_up() {
    if (route->has_ended.exchange(true)) return;
    asio::post(core->io, [c = core.get(), r = route] { c->close_route(*r); });
  }
  std::shared_ptr<http_server::core> core;
  std::shared_ptr<http_route> route;  // ends first
};

class http_source final : public stage {
 public:
  explicit http_source(std::shared_ptr<http_claim> c) : claim_(std::move(c)) {}
  ~http_source() override {
    claim_->route->taken.clear();
    claim_->give_up();
  }
  bool take(std::uint32_t, any_value&&, stage_output&) override { return false; }

  source_state produce(stage_output& out) override {
    auto& r = *claim_->route;
    if (!std::exchange(has_begun_, true)) grant(credits_max);
    r.inbox.poll();
    if (r.taken.empty()) {
      if (claim_->core->has_ended.load()) return source_state::over;
      out.flush();
      r.inbox.run_one_for(nap);
      r.inbox.poll();
    }
    for (std::uint32_t n = 0; n < items_a_turn && !r.taken.empty() && out.has_room(0); ++n) {
      auto request = std::move(r.taken.front().request);
      r.taken.pop_front();
      auto origin = out.origin();
      origin.born_ns = out.now_ns();
      origin.label = std::make_shared<const std::string>(request.peer);
      out.set_origin(std::move(origin));
      out.put(0, any_value(std::move(request)));
      ++taken_;
    }
    if (taken_ >= credits_max / 2) grant(std::exchange(taken_, 0));
    return source_state::more;
  }

 private:
  void grant(std::uint64_t n) {
    asio::post(claim_->core->io,
               [c = claim_->core.get(), r = claim_->route, n] { c->give_credits(*r, n); });
  }
  std::shared_ptr<http_claim> claim_;
  std::uint64_t taken_ = 0;
  bool has_begun_ = false;
};

}  // namespace

flow<http_request> http_requests(flow_graph& t, const http_server& server, const std::string& path,
                                 const http_route_options& o, source_location where) {
  const auto mistake = [&](const std::string& what) {
    t.note_mistake(error(error_code::usage, fmt::format("http_requests: {}", what)).at(where));
  };
  if (!path.starts_with('/') || path.find_first_of("? \r\n") != path.npos)
    mistake(fmt::format("'{}' is no path, such as /predict", path));
  if (path == "/healthz") mistake("the server itself answers at /healthz");
  if (o.methods.empty()) mistake("there is no method");
  const auto& core = server.shared_core();
  auto route = std::make_shared<http_route>();
  route->path = path;
  route->methods = o.methods;
  for (const auto& h : o.headers) route->headers.push_back(lower(h));
  route->allow = fmt::format("{}", fmt::join(o.methods, ", "));
  std::erase_if(core->claimed, [](const auto& r) {
    const auto held = r.lock();
    return held == nullptr || held->has_ended.load();
  });
  for (const auto& r : core->claimed)
    if (const auto held = r.lock(); held != nullptr && held->path == path)
      mistake(fmt::format("the requests for {} have a flow already: use it twice", path));
  core->claimed.push_back(route);
  asio::post(core->io, [c = core.get(), route] { c->add_route(route); });
  stage_info info;
  info.name = o.name;
  info.kind = "http_requests";
  info.where = where;
  info.may_block = true;
  info.make = [claim = std::make_shared<http_claim>(core, route)] {
    return std::unique_ptr<stage>(std::make_unique<http_source>(claim));
  };
  return {t, add_source(t, std::move(info)), 0};
}

void answer(const flow<http_answer>& in, const stage_options& o, source_location where) {
  const auto f = [](http_answer a) {
    a.reply.answer(a.status, std::move(a.content_type), std::move(a.body));
  };
  using F = std::remove_const_t<decltype(f)>;
  add_function(
      in.graph(), in.stage(), in.port(),
      {"answer", &typeid(F), stage_maker<function_stage<F, http_answer>>(f), 0, unknown_rate}, o,
      where);
}

}  // namespace troupe
