#pragma once
// What devices a node has, as its record says (schema/wire.capnp), and in words.
//
// ND-1  A node's devices are gpu:0, gpu:1, ... without a gap: those of its first group, then those
//       of its second one, and so on. So a wish for gpu:N is met by who has more than N.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

inline constexpr std::size_t hardware_bytes_max = 64;

// Devices that follow each other and are alike.
struct device_group {
  std::string hardware;            // "NVIDIA H100 80GB HBM3", at most hardware_bytes_max
  std::uint64_t memory_bytes = 0;  // that jobs may use on each; 0: no limit but the machine's
  std::uint32_t count = 1;
  friend auto operator<=>(const device_group&, const device_group&) = default;
};

std::uint32_t count_of(std::span<const device_group> devices) noexcept;
// One more, behind those that are there. A longer name is cut.
void add_device(std::vector<device_group>& devices, std::string_view hardware,
                std::uint64_t memory_bytes);
// "no device"; "gpu:0 (NVIDIA H100 80GB HBM3, 71.3 GiB)"; "gpu:0 to gpu:2 (asynchronous host),
// gpu:3 (...)".
std::string devices_text(std::span<const device_group> devices);

}  // namespace troupe
