#pragma once
// What sources and sinks of the network share, of Boost.Asio. For the .cpp files of this folder:
// their headers, which programs include, name nothing of it.
//
// Each source or sink has an io_context that one thread at a time runs, so it holds no locks.

#include "troupe/schema/error.hpp"

#include <utility>  // Asio 1.74 uses std::exchange without it

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <chrono>
#include <cstdint>
#include <string>

namespace troupe {

// What a stage may sleep at once: then it looks whether it was halted.
inline constexpr auto nap = std::chrono::milliseconds(20);

inline std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// "127.0.0.1:7000", "[::1]:7000"
std::string text_of(const boost::asio::ip::tcp::endpoint& e);

// Listens at HOST:PORT; port 0 is any free one. usage: a wrong text; unreachable: no such host;
// failed: the system refuses, as where the port is taken.
result<void> listen_at(boost::asio::ip::tcp::acceptor& acceptor, const std::string& where);

}  // namespace troupe
