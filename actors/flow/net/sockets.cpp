#include "troupe/actors/flow/net/sockets.hpp"

#include "troupe/runtime/text/address.hpp"

#include <fmt/format.h>

namespace troupe {

namespace asio = boost::asio;
using asio::ip::tcp;

std::string text_of(const tcp::endpoint& e) {
  return to_string(address{e.address().to_string(), e.port()});
}

result<void> listen_at(tcp::acceptor& acceptor, const std::string& where) {
  const auto at = parse_address(where);
  if (!at) return at.error();
  boost::system::error_code ec;
  tcp::resolver resolver(acceptor.get_executor());
  const auto found = resolver.resolve(at->host, std::to_string(at->port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, ec);
  if (ec || found.empty())
    return error(error_code::unreachable, fmt::format("{}: no address is found for '{}': {}", where,
                                                      at->host, ec.message()));
  const tcp::endpoint endpoint = *found.begin();
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(tcp::acceptor::max_listen_connections, ec);
  if (ec)
    return error(error_code::failed, fmt::format("cannot listen at {}: {}", where, ec.message()));
  return {};
}

}  // namespace troupe
