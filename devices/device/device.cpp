#include "troupe/devices/device/device.hpp"

namespace troupe {

std::string_view to_string(stream_kind k) noexcept {
  switch (k) {
    case stream_kind::compute: return "compute";
    case stream_kind::copy_in: return "copy_in";
    case stream_kind::copy_out: return "copy_out";
    case stream_kind::collective: return "collective";
  }
  return "unknown";
}

}  // namespace troupe
