#pragma once
// Runs bytes through a frame_decoder as a socket reader would, in pieces of a chosen size, and
// writes down what came.

#include "troupe/runtime/wire/frame.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace troupe::test {

struct read_frame {
  frame_prelude prelude;
  std::vector<std::byte> header, payload;
};

struct frame_reader {
  explicit frame_reader(frame_trust trust) : decoder(trust) {}

  frame_decoder::event read(std::span<const std::byte> bytes, std::size_t piece,
                            bool discards = false) {
    for (;;) {
      switch (decoder.next()) {
        case frame_decoder::event::need_bytes: {
          if (bytes.empty()) return frame_decoder::event::need_bytes;
          const std::size_t n = copy_into_space(bytes.first(std::min(piece, bytes.size())));
          decoder.filled(n);
          bytes = bytes.subspan(n);
          break;
        }
        case frame_decoder::event::header_ready:
          headers_ready += 1;
          destination.assign(decoder.prelude().payload_length, std::byte{0});
          if (discards)
            decoder.discard();
          else if (decoder.prelude().payload_stays())
            decoder.read_in_place(destination);  // as if the sender's memory were zeros
          else
            decoder.deliver_to(destination);
          break;
        case frame_decoder::event::frame_complete:
          frames.push_back({decoder.prelude(),
                            {decoder.header().begin(), decoder.header().end()},
                            {decoder.payload().begin(), decoder.payload().end()}});
          is_aligned =
              is_aligned && reinterpret_cast<std::uintptr_t>(decoder.header().data()) % 8 == 0;
          break;
        case frame_decoder::event::failed: return frame_decoder::event::failed;
      }
    }
  }

  std::size_t copy_into_space(std::span<const std::byte> bytes) {
    std::size_t done = 0;
    for (const auto& s : decoder.space()) {
      const std::size_t n = std::min(s.size(), bytes.size() - done);
      if (n > 0) std::memcpy(s.data(), bytes.data() + done, n);
      done += n;
    }
    return done;
  }

  frame_decoder decoder;
  std::vector<read_frame> frames;
  std::vector<std::byte> destination;
  std::size_t headers_ready = 0;
  bool is_aligned = true;
};

}  // namespace troupe::test
