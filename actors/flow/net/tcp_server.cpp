#include "troupe/actors/flow/net/tcp_server.hpp"

#include "troupe/actors/flow/net/sockets.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <set>
#include <string_view>

namespace troupe {
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr std::size_t first_bytes = 4 << 10;  // of a connection's buffer
constexpr std::uint32_t items_a_turn = 64;
constexpr std::uint32_t frame_head_bytes = 4;
// Until the next try to accept, where the system has no handles left.
constexpr auto accept_rest = std::chrono::milliseconds(50);

struct tcp_peer {
  explicit tcp_peer(tcp::socket s) : socket(std::move(s)) {}
  tcp::socket socket;
  std::shared_ptr<const std::string> name;
  std::vector<char> buffer;
  std::size_t begin = 0, end = 0;  // what was read and not taken
  std::size_t scanned = 0;         // of that: has no line's end
  bool has_ended = false;          // it sends no more
  bool is_cut = false;             // by an error

  std::string_view bytes() const noexcept { return {buffer.data() + begin, end - begin}; }
  void take(std::size_t n) noexcept {
    begin += n;
    scanned = 0;
    if (begin == end) begin = end = 0;
  }
};

template <class T>
void count(std::atomic<T>& c, T by = 1) noexcept {
  c.store(c.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

}  // namespace

struct tcp_server::state {
  explicit state(tcp_server_options o) : options(std::move(o)) {}

  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  tcp::acceptor acceptor{io};
  asio::steady_timer rest{io};
  const tcp_server_options options;
  std::string where;
  std::set<std::shared_ptr<tcp_peer>> peers;
  std::deque<std::shared_ptr<tcp_peer>> ready;  // something was read, and is to be looked at
  bool is_accepting = false, has_begun = false;
  const void* owner = nullptr;  // the stage that runs it
  bool has_source = false;      // in the description of a topology
  std::atomic<std::uint64_t> connections{0}, open{0}, too_long{0}, cut{0};

  void accept() {
    if (is_accepting || !acceptor.is_open() || peers.size() >= options.connections_max) return;
    is_accepting = true;
    acceptor.async_accept([this](const boost::system::error_code& ec, tcp::socket socket) {
      is_accepting = false;
      if (!acceptor.is_open()) return;
      if (ec) {
        rest.expires_after(accept_rest);
        rest.async_wait([this](const boost::system::error_code& e) {
          if (!e) accept();
        });
        return;
      }
      add(std::move(socket));
      accept();
    });
  }
  void add(tcp::socket socket) {
    auto p = std::make_shared<tcp_peer>(std::move(socket));
    boost::system::error_code ec;
    const auto from = p->socket.remote_endpoint(ec);
    if (ec) return;  // it is gone already
    p->name = std::make_shared<const std::string>(text_of(from));
    peers.insert(p);
    count<std::uint64_t>(connections);
    open.store(peers.size(), std::memory_order_relaxed);
    read(p);
  }
  // There is room for a part of an item more, always: an item that is too long was found before.
  void read(const std::shared_ptr<tcp_peer>& p) {
    if (p->begin == p->end) {
      p->begin = p->end = 0;
      if (p->buffer.size() > tcp_server::read_bytes) p->buffer = {};
    }
    if (p->begin > 0 && p->end == p->buffer.size()) {
      std::memmove(p->buffer.data(), p->buffer.data() + p->begin, p->end - p->begin);
      p->end -= p->begin;
      p->begin = 0;
    }
    if (p->end == p->buffer.size())
      p->buffer.resize(
          std::max(first_bytes, p->buffer.size() + std::min(p->buffer.size(), largest_step(*p))));
    p->socket.async_read_some(asio::buffer(p->buffer.data() + p->end, p->buffer.size() - p->end),
                              [this, p](const boost::system::error_code& ec, std::size_t n) {
                                p->end += n;
                                if (ec) {
                                  p->has_ended = true;
                                  p->is_cut = ec != asio::error::eof;
                                }
                                ready.push_back(p);
                              });
  }
  // Doubles, but takes no more than an item needs and a read beyond it.
  std::size_t largest_step(const tcp_peer& p) const noexcept {
    const auto most = options.item_bytes_max + frame_head_bytes + tcp_server::read_bytes;
    return p.buffer.size() < most ? static_cast<std::size_t>(most - p.buffer.size())
                                  : tcp_server::read_bytes;
  }
  void close(const std::shared_ptr<tcp_peer>& p) {
    boost::system::error_code ignored;
    p->socket.close(ignored);
    peers.erase(p);
    open.store(peers.size(), std::memory_order_relaxed);
    accept();
  }
  void close_all() {
    boost::system::error_code ignored;
    acceptor.close(ignored);
    rest.cancel();
    for (const auto& p : peers) p->socket.close(ignored);
    peers.clear();
    ready.clear();
    open.store(0, std::memory_order_relaxed);
    io.poll();  // what was under way is told that it is over
    ready.clear();
  }
};

namespace {

// What a connection's bytes begin with.
struct found {
  enum class kind : std::uint8_t { nothing, item, too_long } what = kind::nothing;
  std::uint64_t bytes = 0;  // of what is too long, as far as known
};

struct line_reader {
  using item = tcp_line;
  static constexpr const char* kind = "tcp_lines";
  static constexpr const char* noun = "line";
  static found next(tcp_peer& p, std::uint64_t bytes_max, tcp_line& out) {
    const auto bytes = p.bytes();
    const auto at = bytes.find('\n', p.scanned);
    const auto length = at == bytes.npos ? bytes.size() : at;
    const bool ends_in_return = length > 0 && bytes[length - 1] == '\r';
    if (length - (ends_in_return ? 1 : 0) > bytes_max) return {found::kind::too_long, length};
    p.scanned = bytes.size();
    if (at == bytes.npos) {
      if (!p.has_ended || p.is_cut || bytes.empty()) return {};
      out.text = bytes;
      p.take(bytes.size());
      return {found::kind::item};
    }
    out.text = bytes.substr(0, length - (ends_in_return ? 1 : 0));
    p.take(at + 1);
    return {found::kind::item};
  }
};

struct frame_reader {
  using item = tcp_frame;
  static constexpr const char* kind = "tcp_frames";
  static constexpr const char* noun = "frame";
  static found next(tcp_peer& p, std::uint64_t bytes_max, tcp_frame& out) {
    const auto bytes = p.bytes();
    if (bytes.size() < frame_head_bytes) return {};
    std::uint32_t length = 0;
    for (std::uint32_t i = 0; i < frame_head_bytes; ++i)
      length |= std::uint32_t{static_cast<unsigned char>(bytes[i])} << 8 * i;
    if (length > bytes_max) return {found::kind::too_long, length};
    if (bytes.size() - frame_head_bytes < length) return {};
    const auto* first = reinterpret_cast<const std::byte*>(bytes.data()) + frame_head_bytes;
    out.bytes.assign(first, first + length);
    p.take(std::size_t{frame_head_bytes} + length);
    return {found::kind::item};
  }
};

template <class Reader>
class tcp_source final : public stage {
 public:
  explicit tcp_source(std::shared_ptr<tcp_server::state> s) : state_(std::move(s)) {
    state_->owner = this;  // one that is made anew goes on with the connections
  }
  ~tcp_source() override {
    if (state_->owner == this) state_->close_all();
  }
  bool take(std::uint32_t, any_value&&, stage_output&) override { return false; }

  source_state produce(stage_output& out) override {
    auto& s = *state_;
    if (!std::exchange(s.has_begun, true)) s.accept();
    s.io.poll();
    if (s.ready.empty()) {
      out.flush();
      s.io.run_one_for(nap);
      s.io.poll();
    }
    if (s.ready.empty()) return source_state::more;
    const auto p = std::move(s.ready.front());
    s.ready.pop_front();
    auto origin = out.origin();
    origin.born_ns = out.now_ns();
    origin.label = p->name;
    out.set_origin(std::move(origin));
    for (std::uint32_t n = 0; n < items_a_turn && out.has_room(0); ++n) {
      typename Reader::item item;
      const auto f = Reader::next(*p, s.options.item_bytes_max, item);
      if (f.what == found::kind::nothing) {
        settle(p, out);
        return source_state::more;
      }
      if (f.what == found::kind::too_long) {
        count<std::uint64_t>(s.too_long);
        out.fail({error_code::failed,
                  fmt::format("{} sends a {} of {}{} bytes, and {} are allowed: its connection is "
                              "closed",
                              *p->name, Reader::noun, f.bytes,
                              std::is_same_v<Reader, line_reader> ? " or more" : "",
                              s.options.item_bytes_max)});
        s.close(p);
        return source_state::more;
      }
      item.peer = *p->name;
      out.put(0, any_value(std::move(item)));
    }
    s.ready.push_back(p);  // it may have more; others first
    return source_state::more;
  }

 private:
  // All whole items of it were taken.
  void settle(const std::shared_ptr<tcp_peer>& p, stage_output& out) {
    auto& s = *state_;
    if (!p->has_ended) return s.read(p);
    if (p->is_cut || !p->bytes().empty()) {
      count<std::uint64_t>(s.cut);
      out.fail({error_code::failed,
                fmt::format("{} {} in the middle of a {}", *p->name,
                            p->is_cut ? "lost its connection, perhaps" : "closed its connection",
                            Reader::noun)});
    }
    s.close(p);
  }
  std::shared_ptr<tcp_server::state> state_;
};

template <class Reader>
flow<typename Reader::item> add_tcp_source(flow_graph& t, const tcp_server& server,
                                           const tcp_source_options& o,
                                           const source_location& where) {
  stage_info info;
  info.name = o.name;
  info.kind = Reader::kind;
  info.where = where;
  info.on_error = o.on_error;
  info.may_block = true;
  if (std::exchange(server.shared_state()->has_source, true))
    t.note_mistake(error(error_code::usage, fmt::format("{}: the server at {} feeds a source "
                                                        "already: use its flow twice",
                                                        Reader::kind, server.address()))
                       .at(where));
  info.make = [s = server.shared_state()] {
    return std::unique_ptr<stage>(std::make_unique<tcp_source<Reader>>(s));
  };
  const auto id = add_source(t, std::move(info));
  if (o.dead_letters) {
    const auto port = t.add_output(id);
    t.stage_at(id).dead_output = port;
    t.connect(id, port, o.dead_letters->stage(), t.add_input(o.dead_letters->stage()));
  }
  return {t, id, 0};
}

template <class Reader>
flow<typename Reader::item> open_tcp_source(flow_graph& t, const tcp_server_options& server,
                                            const tcp_source_options& o,
                                            const source_location& where) {
  auto opened = tcp_server::open(server);
  if (opened) return add_tcp_source<Reader>(t, *opened, o, where);
  t.note_mistake(opened.error().while_doing(Reader::kind).at(where));
  stage_info info;  // a flow in any case; it never runs
  info.name = o.name;
  info.kind = Reader::kind;
  info.where = where;
  return {t, add_source(t, std::move(info)), 0};
}

}  // namespace

result<tcp_server> tcp_server::open(tcp_server_options options) {
  auto s = std::make_shared<state>(std::move(options));
  if (s->options.connections_max == 0)
    return error(error_code::usage, "tcp_server: .connections_max is 0");
  if (auto ok = listen_at(s->acceptor, s->options.listen); !ok) return std::move(ok.error());
  boost::system::error_code ec;
  s->where = text_of(s->acceptor.local_endpoint(ec));
  return tcp_server(std::move(s));
}
const std::string& tcp_server::address() const noexcept { return state_->where; }
tcp_counts tcp_server::counts() const noexcept {
  return {state_->connections.load(), state_->open.load(), state_->too_long.load(),
          state_->cut.load()};
}

flow<tcp_line> tcp_lines(flow_graph& t, const tcp_server& server, const tcp_source_options& o,
                         source_location where) {
  return add_tcp_source<line_reader>(t, server, o, where);
}
flow<tcp_frame> tcp_frames(flow_graph& t, const tcp_server& server, const tcp_source_options& o,
                           source_location where) {
  return add_tcp_source<frame_reader>(t, server, o, where);
}
flow<tcp_line> tcp_lines(flow_graph& t, const tcp_server_options& server,
                         const tcp_source_options& o, source_location where) {
  return open_tcp_source<line_reader>(t, server, o, where);
}
flow<tcp_frame> tcp_frames(flow_graph& t, const tcp_server_options& server,
                           const tcp_source_options& o, source_location where) {
  return open_tcp_source<frame_reader>(t, server, o, where);
}

}  // namespace troupe
