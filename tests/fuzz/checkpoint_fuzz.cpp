// libFuzzer over what is read of a checkpoint's folder: manifests, claims, names.
//
// The first byte chooses what the rest is: raw bytes; a manifest whose hash is made right, so that
// what lies behind it is reached; a genuine manifest with pieces replaced, its hash made right too;
// or the fields of a manifest that is then written. A property that does not hold traps; memory and
// undefined behaviour are the sanitizers' part.

#include "tests/fuzz/fuzz_input.hpp"
#include "troupe/runtime/checkpoint/checkpoint.hpp"

#include <cstdint>
#include <cstdlib>
#include <span>

using namespace troupe;

namespace {

using input = test::fuzz_input;
using test::check;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string with_hash(std::string text) {
  return text + "  \"hash\": \"" + hash_of(bytes_of(text)) + "\"\n}\n";
}

void check_message(const error& e) {
  check(e.message().starts_with("file: ") && e.message().find('\n') == std::string::npos);
}

void read_manifest(const std::string& text) {
  const auto m = parse_manifest(bytes_of(text), "file");
  if (!m) return check_message(m.error());
  check(bool(check_manifest(*m, "file")));
  for (const auto& part : m->parts)
    check(is_part_file_name(part.file) && part.file.find('/') == std::string::npos);
  const auto again = to_text(*m, "file");
  check(bool(again));
  const auto same = parse_manifest(bytes_of(*again), "file");
  check(same && *same == *m);
  check(compare_schedule(*m, m->schedule).empty());
}

void names(input in) {
  const auto name = in.rest_text();
  const auto folder = job_folder_name(name);
  check(!folder.empty() && folder.size() <= 160 && folder[0] != '.' &&
        folder.find('/') == folder.npos);
  if (const auto id = parse_checkpoint_folder_name(name))
    check(checkpoint_folder_name(*id) == name);
  if (const auto epoch = parse_epoch_file_name(name)) check(epoch_file_name(*epoch) == name);
  if (const auto c = parse_claimant(bytes_of(name), "file"))
    check(describe(*c).find('\n') == std::string::npos);
  else
    check_message(c.error());
}

checkpoint_manifest sample() {
  checkpoint_manifest m;
  m.job = "mnist";
  m.epoch = 3;
  m.step = 120;
  m.worker_steps = {60, 60};
  m.schedule = {{"workers", "2"}, {"batch", "128"}};
  m.parts = {{"part-0.safetensors", 1234, std::string(32, 'a'), {"w"}},
             {"part-1.safetensors", 5, std::string(32, 'b'), {}}};
  m.variables = {{"w", {dtype::f32, {784, 128}}, {"velocity"}}};
  return m;
}

void replaced_pieces(input in) {
  auto text = *to_text(sample(), "file");
  text.resize(text.rfind("  \"hash\""));
  for (int i = 0; i < 8 && !in.is_empty(); ++i) {
    const auto at = in.size() % (text.size() + 1), length = std::size_t{in.byte()};
    text.replace(at, length % 32, in.text(in.byte() % 32));
  }
  read_manifest(with_hash(text));
}

void written_fields(input in) {
  auto m = sample();
  m.job = in.text(in.byte() % 16);
  m.epoch = static_cast<std::uint32_t>(in.size() << 16);
  m.step = in.size() << 48;
  for (auto n = in.byte() % 4; n > 0; --n)
    m.schedule.emplace_back(in.text(in.byte() % 4), in.text(in.byte() % 16));
  for (auto n = in.byte() % 4; n > 0; --n) {
    const auto name = in.text(in.byte() % 8);
    m.variables.push_back(
        {name,
         {static_cast<dtype>(in.byte() % dtype_count), {static_cast<std::int64_t>(in.size())}},
         {}});
    if (in.byte() % 2 == 0) m.variables.back().slots.push_back(in.text(in.byte() % 8));
    m.parts[in.byte() % 2].variables.push_back(name);
  }
  const auto text = to_text(m, "file");
  if (!text) return check_message(text.error());
  const auto back = parse_manifest(bytes_of(*text), "file");
  check(back && *back == m);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  input in(std::as_bytes(std::span(data, size)));
  switch (in.byte() % 5) {
    case 0: read_manifest(in.rest_text()); break;
    case 1: read_manifest(with_hash(in.rest_text())); break;
    case 2: replaced_pieces(in); break;
    case 3: written_fields(in); break;
    default: names(in); break;
  }
  return 0;
}
