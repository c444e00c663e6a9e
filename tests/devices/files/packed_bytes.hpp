#pragma once
// For tests of readers of files: bytes of texts, packed bytes, and what Python makes.

#include "tests/devices/idx_files.hpp"

#include <zstd.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace troupe::test {

inline byte_vector bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// One frame, whose size is in its header; with `is_streamed` it is not.
inline byte_vector zstd(std::span<const std::byte> bytes, bool is_streamed = false,
                        int window_log = 0) {
  auto* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, is_streamed ? 0 : 1);
  if (window_log > 0) ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
  byte_vector out(ZSTD_compressBound(bytes.size()) + 100);
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  ZSTD_inBuffer from{bytes.data(), is_streamed ? bytes.size() / 2 : bytes.size(), 0};
  if (is_streamed) {
    BOOST_REQUIRE(!ZSTD_isError(ZSTD_compressStream2(context, &to, &from, ZSTD_e_flush)));
    from.size = bytes.size();
  }
  BOOST_REQUIRE(ZSTD_compressStream2(context, &to, &from, ZSTD_e_end) == 0);
  ZSTD_freeCCtx(context);
  out.resize(to.pos);
  return out;
}

// Runs a program of Python's own modules in a folder, for what files it leaves there.
inline void run_python(const temporary_folder& folder, const std::string& program) {
  const auto source = folder.file("make.py");
  std::ofstream(source) << program;
  const auto command = "cd '" + folder.path() + "' && python3 make.py";
  BOOST_REQUIRE(std::system(command.c_str()) == 0);
}

inline byte_vector operator+(byte_vector a, const byte_vector& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The error's text must hold every one of these, on one line.
template <class T>
void check_refused(const result<T>& r, std::initializer_list<std::string_view> parts) {
  BOOST_REQUIRE(!r);
  BOOST_TEST(r.error().message().find('\n') == std::string::npos);
  for (const auto& part : parts)
    BOOST_TEST(r.error().message().find(part) != std::string::npos,
               r.error().message() << " lacks \"" << part << '"');
}

}  // namespace troupe::test
