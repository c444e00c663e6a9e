#pragma once
// Reads event files (actors/session/event_file.hpp), from the formats alone: with a checksum that
// divides bit by bit, and a reader of protocol buffers that keeps all fields that it meets.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::test {

// The remainder as RFC 3720 defines it: bits of a byte from the lowest, polynomial 0x1edc6f41.
inline std::uint32_t slow_crc32c(std::string_view bytes) {
  std::uint32_t r = 0xffffffff;  // bit 31 - i is the coefficient of x^i
  for (const char c : bytes)
    for (int i = 0; i < 8; ++i) {
      const bool bit = ((static_cast<unsigned char>(c) >> i) & 1) != 0;
      const bool out = (r >> 31) != 0;
      r <<= 1;
      if (bit != out) r ^= 0x1edc6f41;
    }
  std::uint32_t reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= ((r >> i) & 1) << (31 - i);
  return ~reversed;
}

inline std::uint64_t number_at(std::string_view bytes, std::size_t at, std::size_t size) {
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < size; ++i)
    n |= std::uint64_t{static_cast<unsigned char>(bytes.at(at + i))} << (8 * i);
  return n;
}

struct event_records {
  std::vector<std::string> data;  // of whole records
  std::size_t rest_bytes = 0;     // of one that is not whole
};

// Throws where a checksum is another one.
inline event_records records_of(std::string_view file) {
  event_records out;
  const auto check = [](std::string_view bytes, std::uint64_t masked) {
    const auto rotated = static_cast<std::uint32_t>(masked) - 0xa282ead8U;
    if (std::rotl(rotated, 15) != slow_crc32c(bytes))
      throw std::runtime_error("a checksum differs");
  };
  while (file.size() >= 12) {
    check(file.substr(0, 8), number_at(file, 8, 4));
    const auto n = number_at(file, 0, 8);
    if (file.size() - 12 < n + 4) break;
    check(file.substr(12, n), number_at(file, 12 + n, 4));
    out.data.emplace_back(file.substr(12, n));
    file.remove_prefix(16 + n);
  }
  out.rest_bytes = file.size();
  return out;
}

// Fields of a message: bytes as they stand there, numbers as 8 of them.
using fields = std::multimap<std::uint64_t, std::string>;
inline fields fields_of(std::string_view bytes) {
  fields out;
  const auto varint = [&] {
    std::uint64_t n = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.at(0));
      bytes.remove_prefix(1);
      n |= std::uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return n;
      if (shift > 56) throw std::runtime_error("a number has more than 10 bytes");
    }
  };
  const auto taken = [&](std::size_t n) {
    if (n > bytes.size()) throw std::runtime_error("a field goes over the end of its message");
    std::string part(bytes.substr(0, n));
    bytes.remove_prefix(n);
    return part;
  };
  while (!bytes.empty()) {
    const auto key = varint();
    switch (key & 7) {
      case 0: {
        const auto n = varint();
        std::string as_bytes(8, '\0');
        std::memcpy(as_bytes.data(), &n, 8);
        out.emplace(key >> 3, as_bytes);
        break;
      }
      case 1: out.emplace(key >> 3, taken(8)); break;
      case 2: out.emplace(key >> 3, taken(varint())); break;
      case 5: out.emplace(key >> 3, taken(4)); break;
      default: throw std::runtime_error("a field of an unknown kind");
    }
  }
  return out;
}
inline const std::string& the(const fields& of, std::uint64_t field) {
  if (of.count(field) != 1) throw std::runtime_error("no field, or several, of one number");
  return of.find(field)->second;
}

struct read_event {
  double wall_time = 0;
  std::uint64_t step = 0;
  std::string version;
  bool is_start = false;  // of a session: what is there from this step on is void
  std::string tag, plugin;
  float value = 0;
  std::string text;
};

inline read_event event_of(const std::string& data) {
  const auto all = fields_of(data);
  read_event e;
  e.wall_time = std::bit_cast<double>(number_at(the(all, 1), 0, 8));
  if (all.contains(2)) e.step = number_at(the(all, 2), 0, 8);
  if (all.contains(3)) e.version = the(all, 3);
  if (all.contains(7)) e.is_start = number_at(the(fields_of(the(all, 7)), 1), 0, 8) == 1;
  if (!all.contains(5)) return e;
  const auto value = fields_of(the(fields_of(the(all, 5)), 1));
  e.tag = the(value, 1);
  if (value.contains(2))
    e.value = std::bit_cast<float>(static_cast<std::uint32_t>(number_at(the(value, 2), 0, 4)));
  if (!value.contains(8)) return e;
  const auto metadata = fields_of(the(value, 9)), tensor = fields_of(the(value, 8));
  e.plugin = the(fields_of(the(metadata, 1)), 1);
  if (number_at(the(metadata, 4), 0, 8) != 2) throw std::runtime_error("not of the class tensor");
  if (number_at(the(tensor, 1), 0, 8) != 7) throw std::runtime_error("not a tensor of strings");
  const auto size = fields_of(the(fields_of(the(tensor, 2)), 2));
  if (number_at(the(size, 1), 0, 8) != 1) throw std::runtime_error("not one string");
  e.text = the(tensor, 8);
  return e;
}

inline std::string bytes_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path + " cannot be read");
  return {std::istreambuf_iterator<char>(in), {}};
}

// Of a file that ends with a whole record.
inline std::vector<read_event> events_of(const std::string& path) {
  const auto records = records_of(bytes_of_file(path));
  if (records.rest_bytes != 0) throw std::runtime_error(path + " ends within a record");
  std::vector<read_event> out;
  for (const auto& data : records.data) out.push_back(event_of(data));
  return out;
}

// Names in a folder, sorted, with their folder.
inline std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    out.push_back(entry.path().string());
  std::ranges::sort(out);
  return out;
}

}  // namespace troupe::test
