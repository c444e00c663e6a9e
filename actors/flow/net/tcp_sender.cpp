#include "troupe/actors/flow/net/tcp_sender.hpp"

#include "troupe/actors/flow/net/sockets.hpp"
#include "troupe/runtime/text/address.hpp"

#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <limits>

namespace troupe {
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr std::size_t write_bytes = 64 << 10;  // that wait for more, at most
constexpr auto first_rest = std::chrono::milliseconds(100);
constexpr auto longest_rest = std::chrono::seconds(2);

bool encode(const std::string& text, std::string& out) {
  if (text.find('\n') != text.npos) return false;
  out.append(text).push_back('\n');
  return true;
}
bool encode(const std::vector<std::byte>& bytes, std::string& out) {
  if (bytes.size() > std::numeric_limits<std::uint32_t>::max()) return false;
  for (std::uint32_t i = 0; i < 4; ++i)
    out.push_back(static_cast<char>(bytes.size() >> 8 * i & 0xff));
  out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return true;
}

// A connection to one address, and what is to be written to it.
class tcp_writer {
 public:
  tcp_writer(address to, std::uint32_t tries, std::int64_t timeout_ns)
      : to_(std::move(to)), tries_(std::max(1U, tries)), timeout_(timeout_ns) {}
  ~tcp_writer() {
    if (!buffer_.empty()) reset();
    close();
    io_.restart();
    io_.poll();
  }

  std::string& buffer() noexcept { return buffer_; }
  // `bytes` more were put into the buffer.
  void added(std::size_t bytes) { sizes_.push_back(bytes); }
  std::size_t items() const noexcept { return sizes_.size(); }
  void drop_last() {
    buffer_.resize(buffer_.size() - sizes_.back());
    sizes_.pop_back();
  }

  // All of the buffer. After an error, what begins with the first item that was not wholly written
  // is still there.
  result<void> write() {
    if (buffer_.empty()) return {};
    if (is_open_) run_ready();
    if (is_open_ && peer_has_closed_) return lost("it closed the connection");
    if (!is_open_)
      if (auto ok = connect(); !ok) return ok;
    std::size_t written = 0;
    while (written < buffer_.size()) {
      std::size_t n = 0;
      const auto ec = wait(timeout_, [&](auto done) {
        socket_.async_write_some(asio::buffer(buffer_.data() + written, buffer_.size() - written),
                                 [done, &n](const boost::system::error_code& e, std::size_t bytes) {
                                   n = bytes;
                                   done(e);
                                 });
      });
      written += n;
      if (!ec) continue;
      std::size_t whole = 0;
      while (!sizes_.empty() && whole + sizes_.front() <= written) {
        whole += sizes_.front();
        sizes_.pop_front();
      }
      buffer_.erase(0, whole);
      // Half a line is none: it does not end as one.
      if (written > whole) reset();
      if (ec == asio::error::timed_out) {
        close();
        return error(error_code::timed_out,
                     fmt::format("{}: it takes nothing for {:.1f} s", to_string(to_),
                                 std::chrono::duration<double>(timeout_).count()));
      }
      return lost(ec.message());
    }
    buffer_.clear();
    sizes_.clear();
    return {};
  }
  // No more comes. The peer may have sent something that nobody read: a socket that is closed then
  // would take back what the peer has not read yet.
  void finish() {
    if (!is_open_) return;
    boost::system::error_code ec;
    socket_.shutdown(tcp::socket::shutdown_send, ec);
    const auto until =
        std::chrono::steady_clock::now() + std::min<clock::duration>(timeout_, last_);
    while (!peer_has_closed_ && std::chrono::steady_clock::now() < until) io_.run_one_for(nap);
    close();
  }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr auto last_ = std::chrono::seconds(1);

  error lost(const std::string& why) {
    close();
    return {error_code::failed, fmt::format("{}: {}; the last lines or frames may not have arrived",
                                            to_string(to_), why)};
  }
  // The peer sees a connection that was broken off, not one that ended.
  void reset() {
    boost::system::error_code ignored;
    if (socket_.is_open()) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  }
  void close() {
    boost::system::error_code ignored;
    socket_.close(ignored);
    is_open_ = false;
  }
  void run_ready() { io_.poll(); }

  // Runs until `start`'s operation is done; closes the socket, and so ends it, at the limit.
  template <class Start>
  boost::system::error_code wait(clock::duration limit, Start start) {
    std::optional<boost::system::error_code> result;
    const auto until = clock::now() + limit;
    start([&result](const boost::system::error_code& e) { result = e; });
    while (!result && clock::now() < until) io_.run_one_until(until);
    if (result) return *result;
    boost::system::error_code ignored;
    resolver_.cancel();
    socket_.cancel(ignored);
    while (!result) io_.run_one();
    return asio::error::timed_out;
  }

  result<void> connect() {
    boost::system::error_code ec;
    clock::duration rest = first_rest;
    for (std::uint32_t i = 0; i < tries_; ++i) {
      if (i > 0) {
        asio::steady_timer timer(io_, rest);
        wait(rest * 2, [&](auto done) { timer.async_wait(done); });
        rest = std::min<clock::duration>(rest * 2, longest_rest);
      }
      close();
      tcp::resolver::results_type found;
      ec = wait(timeout_, [&](auto done) {
        resolver_.async_resolve(
            to_.host, std::to_string(to_.port),
            [done, &found](const boost::system::error_code& e, tcp::resolver::results_type r) {
              found = std::move(r);
              done(e);
            });
      });
      if (ec) continue;
      ec = wait(timeout_, [&](auto done) {
        asio::async_connect(
            socket_, found,
            [done](const boost::system::error_code& e, const tcp::endpoint&) { done(e); });
      });
      if (ec) continue;
      socket_.set_option(tcp::no_delay(true), ec);
      is_open_ = true;
      peer_has_closed_ = false;
      ++connection_;
      listen_for_end();
      return {};
    }
    return error(error_code::unreachable, fmt::format("{} is not reached, in {} tries: {}",
                                                      to_string(to_), tries_, ec.message()));
  }
  // What the peer says is not read by anybody; that it closes is.
  void listen_for_end() {
    socket_.async_read_some(
        asio::buffer(ignored_),
        [this, connection = connection_](const boost::system::error_code& e, std::size_t) {
          if (connection != connection_ || !is_open_) return;
          if (e)
            peer_has_closed_ = true;
          else
            listen_for_end();
        });
  }

  address to_;
  std::uint32_t tries_;
  clock::duration timeout_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  tcp::resolver resolver_{io_};
  tcp::socket socket_{io_};
  bool is_open_ = false, peer_has_closed_ = false;
  std::uint64_t connection_ = 0;
  std::array<char, 512> ignored_{};
  std::string buffer_;
  std::deque<std::size_t> sizes_;  // of the items in it
};

template <class T>
class tcp_sink final : public stage {
 public:
  tcp_sink(address to, std::uint32_t tries, std::int64_t timeout_ns)
      : writer_(std::move(to), tries, timeout_ns) {}

  bool take(std::uint32_t, any_value&& v, stage_output& out) override {
    const auto before = writer_.buffer().size();
    if (!encode(v.get<T>(), writer_.buffer())) {
      out.fail({error_code::usage, std::is_same_v<T, std::string>
                                       ? "a line with a line's end in it cannot be sent"
                                       : "a frame of 4 GiB or more cannot be sent"});
      // Those before it do not wait for one after it.
      if (out.head(0) == nullptr)
        if (auto ok = writer_.write(); !ok) out.fail(std::move(ok.error()));
      return false;
    }
    writer_.added(writer_.buffer().size() - before);
    if (out.head(0) != nullptr && writer_.buffer().size() < write_bytes) return false;
    if (auto ok = writer_.write(); !ok) {
      if (writer_.items() > 0) writer_.drop_last();
      out.fail(std::move(ok.error()));
    }
    return false;
  }
  bool end(std::uint32_t, stage_output& out) override {
    if (auto ok = writer_.write(); !ok) {
      if (writer_.items() > 1) out.count_dropped(writer_.items() - 1);
      out.fail(std::move(ok.error()));
    }
    writer_.finish();
    return false;
  }
  bool has_under_way() const override { return writer_.items() > 0; }

 private:
  tcp_writer writer_;
};

template <class T>
void add_tcp_sink(const flow<T>& in, const char* kind, const std::string& to,
                  const tcp_sink_options& o, const source_location& where) {
  auto at = parse_address(to);
  if (!at) in.graph().note_mistake(at.error().while_doing(kind).at(where));
  const auto a = at ? *at : address{};
  add_function(
      in.graph(), in.stage(), in.port(),
      {kind, &typeid(std::string),  // it is called by its kind
       [a, tries = o.tries, timeout = o.timeout.ns] {
         return std::unique_ptr<stage>(std::make_unique<tcp_sink<T>>(a, tries, timeout));
       },
       0, unknown_rate, true},
      {.name = o.name, .blocks = true, .on_error = o.on_error, .dead_letters = o.dead_letters},
      where);
}

}  // namespace

void send_lines(const flow<std::string>& in, const std::string& address, const tcp_sink_options& o,
                source_location where) {
  add_tcp_sink(in, "send_lines", address, o, where);
}
void send_frames(const flow<std::vector<std::byte>>& in, const std::string& address,
                 const tcp_sink_options& o, source_location where) {
  add_tcp_sink(in, "send_frames", address, o, where);
}

}  // namespace troupe
