#include "troupe/runtime/wire/node_devices.hpp"

#include "troupe/runtime/text/byte_size.hpp"

#include <fmt/format.h>

namespace troupe {

std::uint32_t count_of(std::span<const device_group> devices) noexcept {
  std::uint32_t n = 0;
  for (const auto& d : devices) n += d.count;
  return n;
}

void add_device(std::vector<device_group>& devices, std::string_view hardware,
                std::uint64_t memory_bytes) {
  hardware = hardware.substr(0, hardware_bytes_max);
  if (!devices.empty() && devices.back().hardware == hardware &&
      devices.back().memory_bytes == memory_bytes)
    ++devices.back().count;
  else
    devices.push_back({std::string(hardware), memory_bytes, 1});
}

std::string devices_text(std::span<const device_group> devices) {
  std::string out;
  std::uint32_t next = 0;
  for (const auto& d : devices) {
    if (d.count == 0) continue;
    if (!out.empty()) out += ", ";
    out += fmt::format("gpu:{}", next);
    if (d.count > 1) out += fmt::format(" to gpu:{}", next + d.count - 1);
    out += d.memory_bytes == 0
               ? fmt::format(" ({})", d.hardware)
               : fmt::format(" ({}, {}{})", d.hardware, format_bytes(d.memory_bytes),
                             d.count > 1 ? " each" : "");
    next += d.count;
  }
  return out.empty() ? "no device" : out;
}

}  // namespace troupe
