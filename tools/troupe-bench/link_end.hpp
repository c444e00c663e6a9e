#pragma once
// One end of a link between two processes, without the cluster around it: production transport,
// link and threads, but no handshake and no membership. Three connections: the link's two lanes,
// and one whose frames are answered by the transport alone.
//
// Threading: construct, call and destroy from one thread. Everything else happens on the I/O worker
// and, as in a node, on a stream: there are the actors that send and take tensors.

#include "troupe/schema/error.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace troupe {

// Tensors of one size over one edge. As many are under way as the edge has credits.
struct stream_case {
  std::string_view name;
  std::size_t bytes = 0;
  std::uint32_t credits = 0;
  std::uint64_t count = 0;  // in one run
};
inline constexpr std::array<stream_case, 5> stream_cases{{{"4 KiB", 4 << 10, 64, 20'000},
                                                          {"64 KiB", 64 << 10, 32, 6'000},
                                                          {"1 MiB", 1 << 20, 8, 500},
                                                          {"16 MiB", 16 << 20, 4, 32},
                                                          {"64 MiB", 64 << 20, 3, 10}}};

enum class link_side : std::uint8_t { sender, receiver };
// What guards its bytes.
enum class link_guard : std::uint8_t { nothing, checksums, tls };

class link_end {
 public:
  link_end(link_side side, link_guard guard);
  ~link_end();
  link_end(const link_end&) = delete;
  link_end& operator=(const link_end&) = delete;

  // The receiver.
  result<std::uint16_t> listen();
  // Distinct buffers that tensors of that case have arrived in.
  std::uint64_t buffers_seen(std::size_t stream_case) const;

  // The sender. Figures in seconds.
  result<void> connect(std::uint16_t port);
  double ping_transport(std::size_t bytes, std::uint64_t count);  // frames of a channel
  double ping_link(std::size_t bytes, std::uint64_t count);       // numbered control messages
  // `count` tensors, until the credit of the last one is back.
  double stream(std::size_t stream_case, std::uint64_t count);
  // Distinct buffers that stream() sends from.
  static std::uint64_t buffers_sent_from(std::size_t stream_case);

 private:
  struct parts;
  std::unique_ptr<parts> parts_;
};

}  // namespace troupe
