#pragma once
// Requests over HTTP/1.1 as a flow, and a sink that answers them: to serve what a pipeline does.
//
//   auto server = http_server::open({.listen = "127.0.0.1:8080"});
//   topology t;
//   auto requests = http_requests(t, *server, "/double");
//   answer(map(requests, [](http_request r) {
//     return http_answer{r.reply, 200, "text/plain", r.body + r.body};
//   }));
//   return t.run();
//
// Between the two stands whatever turns requests into answers: a batch() and a model, replicas, or
// a stage that asks others. Each request has a handle, `reply`, that goes with it.
//
// HQ-1  Each request that a topology takes is answered once: by the first answer that its handle is
//       given, or by 503 when the last copy of the handle is gone.
// HQ-2  Answers of a connection leave in the order of its requests. It has one request in the
//       topology; what a client sends meanwhile waits at the socket.
// HQ-3  Where there is no room in the topology, nothing more of a request is read; what is held is
//       at most `buffer_bytes_max` of bodies, and 16 KiB of head and 64 KiB a connection. Beyond
//       `connections_max`, clients wait in the system's queue.
// HQ-4  A head, a body, and the time that a client takes for an answer are within `timeout` each,
//       counted from the first wait, not from the last byte: who is slow on purpose is cut off.
//
// What the server says by itself: GET /healthz is 200; 400 to what is no HTTP, 404 to an unknown
// path, 405 to a wrong method, 408 to who is too slow, 413 and 431 to what is too large, 503 when
// bodies fill the memory, when the topology has ended, and while the server stops.
// Ends: the requests' flow, on topology.stop(): from then on requests are answered 503, and those
// that were taken go on to their answers. The server, by close() or its end: answers that are on
// their way are written, for `timeout` at most.
// Threading: a thread of its own does all that is said here; handles are answered from any thread.
// Ownership: the server owns the socket and the connections, topologies their requests; either may
// end first, and a topology that comes later may take over a path.
// Errors: open(): a wrong address, or one that is taken. HTTP is RFC 9112; TLS and HTTP/2 are what
// a proxy before it does.

#include "troupe/runtime/flow/flow.hpp"
#include "troupe/schema/error.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

struct http_server_options {
  std::string listen = "127.0.0.1:0";                         // port 0: any that is free
  std::uint64_t body_bytes_max = std::uint64_t{16} << 20;     // of one request
  std::uint64_t buffer_bytes_max = std::uint64_t{256} << 20;  // of all, before they are taken
  std::uint32_t connections_max = 1024;
  nanoseconds_of timeout = std::chrono::seconds(10);
};

struct http_counts {
  std::uint64_t connections = 0;  // that were taken
  std::uint64_t open = 0;         // now
  std::uint64_t requests = 0;     // that went into topologies
  std::uint64_t answered = 0;     // of those: written to the client
  std::uint64_t refused = 0;      // answered by the server itself, but for /healthz
  std::uint64_t cut = 0;          // connections that ended within a request, or before its answer
};

// Where the answer to one request goes. Copies are of the same request.
class http_reply {
 public:
  http_reply() = default;
  // True: this was the first one. From any thread; it waits for nothing.
  bool answer(std::uint32_t status, std::string content_type, std::string body) const;
  bool is_answered() const noexcept;
  explicit operator bool() const noexcept { return state_ != nullptr; }

  struct state;
  explicit http_reply(std::shared_ptr<state> s) noexcept : state_(std::move(s)) {}

 private:
  std::shared_ptr<state> state_;
};

struct http_request {
  std::string method;  // "POST"
  std::string target;  // "/predict?top=3"
  std::string body;
  std::string peer;  // "127.0.0.1:40124"
  // Those that http_requests() was asked for, with their names in lower case.
  std::vector<std::pair<std::string, std::string>> headers;
  http_reply reply;

  std::string_view path() const noexcept;   // "/predict"
  std::string_view query() const noexcept;  // "top=3"
  // Empty where the client sent none.
  std::string_view header(std::string_view name) const noexcept;
  std::size_t size_bytes() const noexcept;
};

struct http_answer {
  http_reply reply;
  std::uint32_t status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::size_t size_bytes() const noexcept { return content_type.size() + body.size(); }
};

class http_server {
 public:
  // Listens and answers from now on: by 404, until http_requests() knows a path; requests for it
  // wait then until their topology runs.
  static result<http_server> open(http_server_options options = {});
  http_server(http_server&&) noexcept;
  http_server& operator=(http_server&&) noexcept;
  ~http_server();

  // Where it listens, with the port that it got.
  const std::string& address() const noexcept;
  // From any thread.
  http_counts counts() const noexcept;
  // No more requests; returns when those under way are answered, or after `timeout`.
  void close();

  struct core;
  const std::shared_ptr<core>& shared_core() const noexcept { return core_; }

 private:
  explicit http_server(std::shared_ptr<core> c) noexcept;
  std::shared_ptr<core> core_;
};

struct http_route_options {
  std::vector<std::string> methods = {"POST"};
  std::vector<std::string> headers = {"content-type"};  // that requests have
  std::string name{};
};

// Requests for `path` ("/predict"; whatever stands behind a '?' belongs to no path).
flow<http_request> http_requests(flow_graph& t, const http_server& server, const std::string& path,
                                 const http_route_options& o = {},
                                 source_location where = source_location::current());
// Gives each answer to its request. One that was answered before, or has no request, is dropped.
void answer(const flow<http_answer>& in, const stage_options& o = {},
            source_location where = source_location::current());

}  // namespace troupe
