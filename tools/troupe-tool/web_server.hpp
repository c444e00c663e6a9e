#pragma once
// HTTP/1.1 (RFC 9112) for the page of `troupe serve`: GET and HEAD, over TLS or not.
//
// SE-9   Nobody holds the server up: a head has 8 KiB at most and five seconds from its first wait,
//        not from its last byte; a connection without a request ends after fifteen seconds; an
//        answer is taken at 256 KiB in ten seconds or faster. A body is not read.
// SE-10  It takes bounded memory: connections_max connections with 12 KiB each, and
//        answers_bytes_max of answers that are being written. Where all connections are taken, the
//        oldest one that waits for a request, or whose request the door did not admit, gives way to
//        the new one. Who was not admitted has one answer, and the connection ends.
// SE-11  Who may not look is told so by the door alone; /healthz and /readyz answer everybody, with
//        no more than yes or no.
//
// What it says by itself: 400 to what is no HTTP, or to HTTP where HTTPS is spoken, 401 and 403 of
// the door, 405 to other methods, 413 and 431 to what is too large, 503 where answers fill the
// memory. Threading: all on the thread that runs the io_context. Ownership: the io_context and the
// handler outlive it, and it outlives the run of the io_context.

#include "tools/troupe-tool/serve_answer.hpp"
#include "tools/troupe-tool/serve_request.hpp"
#include "troupe/actors/flow/net/sockets.hpp"
#include "troupe/schema/error.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

namespace troupe {

inline constexpr std::size_t connections_max = 64;
inline constexpr std::uint64_t answers_bytes_max = std::uint64_t{256} << 20;

struct web_connection;

struct web_question {
  request_target target;
  bool is_admitted = true;               // false: of /healthz and /readyz alone
  std::shared_ptr<web_connection> from;  // for web_server::wait() and wake()
};
// Makes the answer; it may wait. Called for each request that the door admits.
using web_handler = std::function<boost::asio::awaitable<web_answer>(const web_question&)>;

using head_parser = boost::beast::http::request_parser<boost::beast::http::empty_body>;

class web_server {
 public:
  web_server(boost::asio::io_context& io, web_handler handler);
  ~web_server();

  // Takes the port, and answers nobody yet. Errors: of listen_at().
  result<void> listen(const std::string& where);
  boost::asio::ip::tcp::endpoint endpoint() const;
  // `tls`: null, or what connections are protected with; it outlives the server.
  void start(door d, boost::asio::ssl::context* tls);
  // Takes no more requests; answers that are under way go on, for at most two seconds.
  void begin_close();

  // For a handler: until wake(), or `deadline_ns`, or the end of the connection. False: it has
  // ended.
  boost::asio::awaitable<bool> wait(web_connection& c, std::int64_t deadline_ns);
  // Whether the client has closed the connection, or its half of it: it waits for nothing long.
  static bool has_gone(web_connection& c);
  void wake(web_connection& c);
  void wake_all();  // who waits

 private:
  boost::asio::awaitable<void> accept_all();
  boost::asio::awaitable<void> sweep();
  boost::asio::awaitable<void> serve(std::shared_ptr<web_connection> c);
  boost::asio::awaitable<bool> serve_one(std::shared_ptr<web_connection> c);
  boost::asio::awaitable<boost::system::error_code> read_head(web_connection& c, head_parser& p);
  boost::asio::awaitable<web_answer> answer_to_head(std::shared_ptr<web_connection> c,
                                                    const head_parser& p);
  boost::asio::awaitable<bool> write(web_connection& c, const web_answer& a, bool keeps,
                                     bool is_head);
  boost::asio::awaitable<std::size_t> read_some(web_connection& c, std::size_t bytes,
                                                boost::system::error_code& ec);
  boost::asio::awaitable<void> linger(web_connection& c);
  boost::asio::awaitable<bool> is_tls(web_connection& c);
  web_answer refusal_of(admission a, const request_target& target) const;
  web_answer enter(const request_target& target, const std::string& site) const;
  std::string head_of(const web_answer& a, bool keeps);
  void make_room();

  boost::asio::io_context& io_;
  const web_handler handler_;
  std::optional<door> door_;
  boost::asio::ssl::context* tls_ = nullptr;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer accept_event_, sweep_timer_;
  std::set<std::shared_ptr<web_connection>> connections_;
  std::uint64_t writing_bytes_ = 0;
  std::int64_t close_at_ns_ = 0;  // 0: it does not end
  std::time_t date_at_ = 0;
  std::string date_;
};

}  // namespace troupe
