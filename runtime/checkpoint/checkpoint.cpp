#include "troupe/runtime/checkpoint/checkpoint.hpp"

#include "troupe/devices/files/json_depth.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <concepts>
#include <limits>
#include <map>
#include <set>

namespace troupe {
namespace {

using json = nlohmann::ordered_json;

constexpr std::string_view format_name = "troupe checkpoint";
constexpr std::uint64_t version_now = 1;
// A manifest needs four: manifest, parts, part, variables.
constexpr std::size_t depth_max = 8;
// File systems take 255; some tools add an ending.
constexpr std::size_t folder_name_characters_max = 160;
constexpr std::size_t cut_name_characters = 120;
constexpr std::int64_t elements_max = std::int64_t{1} << 56;  // whose bytes can still be counted

bool is_plain(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

template <class T>
std::optional<T> number(std::string_view s) noexcept {
  T n = 0;
  const auto [end, code] = std::from_chars(s.data(), s.data() + s.size(), n);
  if (code != std::errc{} || end != s.data() + s.size()) return std::nullopt;
  return n;
}

// The number between prefix and suffix, if that is how name_of() writes it.
template <class T, class Name>
std::optional<T> number_in(std::string_view name, std::string_view prefix, std::string_view suffix,
                           Name name_of) {
  if (name.size() < prefix.size() + suffix.size() || !name.starts_with(prefix) ||
      !name.ends_with(suffix))
    return std::nullopt;
  const auto n = number<T>(name.substr(prefix.size(), name.size() - prefix.size() - suffix.size()));
  if (!n || name_of(*n) != name) return std::nullopt;
  return n;
}

// Each struct lists its fields once; a writer or a reader walks the list.
template <class T, class U>
concept is = std::same_as<std::remove_const_t<T>, U>;

template <class V, is<checkpoint_part> T>
void fields(V& v, T& p) {
  v("file", p.file), v("bytes", p.bytes), v("hash", p.hash), v("variables", p.variables);
}

template <class V, is<checkpoint_variable> T>
void fields(V& v, T& x) {
  v("name", x.name), v("dtype", x.spec.type), v("shape", x.spec.shape), v("slots", x.slots);
}

template <class V, is<checkpoint_manifest> T>
void fields(V& v, T& m) {
  v("job", m.job), v("epoch", m.epoch), v("step", m.step), v("worker_steps", m.worker_steps);
  v("schedule", m.schedule), v("parts", m.parts), v("variables", m.variables),
      v("made_unix_ns", m.made_unix_ns);
}

template <class V, is<checkpoint_claimant> T>
void fields(V& v, T& c) {
  v("client", c.client), v("host", c.host), v("pid", c.pid), v("unix_seconds", c.unix_seconds);
}

struct writer {
  json out = json::object();

  void operator()(const char* key, const auto& value) { out[key] = write(value); }

  json write(const std::string& s) const { return s; }
  json write(std::unsigned_integral auto n) const { return n; }
  json write(dtype type) const { return std::string(to_string(type)); }
  json write(const shape& s) const {
    return std::vector<std::int64_t>(s.sizes().begin(), s.sizes().end());
  }
  json write(const checkpoint_schedule& s) const {
    json object = json::object();
    for (const auto& [key, value] : s) object[key] = value;
    return object;
  }
  template <class T>
  json write(const std::vector<T>& list) const {
    json items = json::array();
    for (const auto& item : list) items.push_back(write(item));
    return items;
  }
  template <class T>
    requires std::is_class_v<T>
  json write(const T& value) const {
    writer inner;
    fields(inner, value);
    return std::move(inner.out);
  }
};

// What is missing or of another type than it should be; the first one stays.
struct reader {
  const json& in;
  std::string path;  // of `in`: "", "parts[2]."
  std::optional<std::string>& failure;

  template <class T>
  void operator()(const char* key, T& value) {
    if (failure) return;
    const auto at = in.find(key);
    if (at == in.end())
      failure = fmt::format("{}{} is missing", path, key);
    else
      read(*at, value, path + key);
  }

  void fail(const json& got, const std::string& where, std::string_view expected) {
    failure = fmt::format("{} should be {}, and is {}", where, expected,
                          got.is_structured() || got.is_string() ? got.type_name() : got.dump());
  }

  void read(const json& j, std::string& s, const std::string& where) {
    if (!j.is_string()) return fail(j, where, "a string");
    s = j.get_ref<const std::string&>();
  }
  template <std::unsigned_integral T>
  void read(const json& j, T& n, const std::string& where) {
    constexpr auto most = std::numeric_limits<T>::max();
    if (!j.is_number_unsigned() || j.get<std::uint64_t>() > most)
      return fail(j, where, fmt::format("a whole number up to {}", most));
    n = j.get<T>();
  }
  void read(const json& j, dtype& type, const std::string& where) {
    std::string name;
    read(j, name, where);
    for (std::uint8_t i = 0; i < dtype_count; ++i)
      if (to_string(dtype{i}) == name) {
        type = dtype{i};
        return;
      }
    if (!failure) failure = fmt::format("{} is {}, which is no dtype", where, in_quotes(name));
  }
  void read(const json& j, shape& s, const std::string& where) {
    std::vector<std::uint64_t> sizes;
    read(j, sizes, where);
    if (failure) return;
    std::vector<dim> dims;
    // Too large ones get negative.
    for (const auto n : sizes) dims.push_back({static_cast<std::int64_t>(n), 0});
    if (const auto made = shape::from(dims))
      s = *made;
    else
      failure = where + " has a rank or a size that no tensor can have";
  }
  void read(const json& j, checkpoint_schedule& s, const std::string& where) {
    if (!j.is_object()) return fail(j, where, "an object");
    for (const auto& [key, value] : j.items()) {
      if (failure) return;
      read(value, s.emplace_back(key, "").second, fmt::format("{}.{}", where, in_quotes(key)));
    }
  }
  template <class T>
  void read(const json& j, std::vector<T>& list, const std::string& where) {
    if (!j.is_array()) return fail(j, where, "an array");
    for (std::size_t i = 0; i < j.size() && !failure; ++i)
      read(j[i], list.emplace_back(), fmt::format("{}[{}]", where, i));
  }
  template <class T>
    requires std::is_class_v<T>
  void read(const json& j, T& value, const std::string& where) {
    if (!j.is_object()) return fail(j, where, "an object");
    reader inner{j, where.empty() ? "" : where + ".", failure};
    fields(inner, value);
  }
};

std::optional<json> parse_object(std::string_view text) {
  if (!is_shallow_json(text, depth_max)) return std::nullopt;
  auto tree = json::parse(text, nullptr, false);
  if (!tree.is_object()) return std::nullopt;
  return tree;
}

error bad(std::string_view file, std::string_view what) {
  return {error_code::usage, fmt::format("{}: not a manifest that can be read: {}", file, what)};
}

// Everything behind the bytes that are hashed.
std::string last_lines(std::string_view hash) {
  return fmt::format("  \"hash\": \"{}\"\n}}\n", hash);
}

bool leads_out(std::string_view file) noexcept {
  return file.empty() || file == "." || file.find('/') != file.npos ||
         file.find('\\') != file.npos || file.find("..") != file.npos;
}

bool is_hash(std::string_view text) noexcept {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

// What is wrong with the variables alone, or "".
std::string problem_of(const std::vector<checkpoint_variable>& variables) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const auto& v = variables[i];
    const auto wrong = [&](std::string_view what) {
      return fmt::format("variables[{}] {} {}", i, in_quotes(v.name), what);
    };
    if (!is_variable_name(v.name)) return wrong("has a name that no variable can have");
    if (!names.insert(v.name).second) return wrong("is there twice");
    if (v.spec.shape.is_symbolic()) return wrong("has a shape that is not exact");
    if (v.spec.shape.elements() > elements_max) return wrong("is too large");
    std::set<std::string_view> slots;
    for (const auto& slot : v.slots) {
      if (!is_slot_name(slot))
        return wrong(fmt::format("has a slot {}, which no optimizer has", in_quotes(slot)));
      if (!slots.insert(slot).second)
        return wrong(fmt::format("has a slot {} twice", in_quotes(slot)));
    }
  }
  return "";
}

// What is wrong with the parts, given variables that are fine.
std::string problem_of(const std::vector<checkpoint_part>& parts,
                       const std::vector<checkpoint_variable>& variables) {
  std::set<std::string_view> files, missing;
  for (const auto& v : variables) missing.insert(v.name);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& p = parts[i];
    if (leads_out(p.file))
      return fmt::format("a manifest that names files outside its folder: parts[{}].file is {}", i,
                         in_quotes(p.file));
    if (!is_part_file_name(p.file))
      return fmt::format("parts[{}].file is {}, not a name of a part", i, in_quotes(p.file));
    if (!files.insert(p.file).second)
      return fmt::format("parts[{}].file: {} is there twice", i, in_quotes(p.file));
    if (!is_hash(p.hash))
      return fmt::format("parts[{}].hash is {}, not 32 hex digits", i, in_quotes(p.hash));
    for (const auto& name : p.variables)
      if (missing.erase(name) == 0)
        return fmt::format("parts[{}].variables: {} is unknown, or there twice", i,
                           in_quotes(name));
  }
  if (!missing.empty())
    return fmt::format("variable {} is in no part", in_quotes(*missing.begin()));
  return "";
}

}  // namespace

std::string job_folder_name(std::string_view job) {
  if (job.empty()) return "%";
  std::string name;
  std::size_t cut = 0;  // where a longer name would be cut: between two characters of the job
  for (const char c : job) {
    if (is_plain(c) || (c == '.' && !name.empty()))
      name += c;
    else
      name += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    if (name.size() <= cut_name_characters) cut = name.size();
  }
  if (name.size() <= folder_name_characters_max) return name;
  // "%-" stands in no other name.
  return fmt::format("{}%-{}", name.substr(0, cut), hash_of(std::as_bytes(std::span(job))));
}

std::string checkpoint_folder_name(checkpoint_id id) {
  return fmt::format("step-{:012}.epoch-{}", id.step, id.epoch);
}

std::optional<checkpoint_id> parse_checkpoint_folder_name(std::string_view name) {
  constexpr std::string_view front = "step-", middle = ".epoch-";
  const auto at = name.find(middle);
  if (!name.starts_with(front) || at == name.npos || at < front.size()) return std::nullopt;
  const auto step = number<std::uint64_t>(name.substr(front.size(), at - front.size()));
  const auto epoch = number<std::uint32_t>(name.substr(at + middle.size()));
  if (!step || !epoch || checkpoint_folder_name({*epoch, *step}) != name) return std::nullopt;
  return checkpoint_id{*epoch, *step};
}

std::string epoch_file_name(std::uint32_t epoch) { return fmt::format("epoch-{:08}", epoch); }

std::optional<std::uint32_t> parse_epoch_file_name(std::string_view name) {
  return number_in<std::uint32_t>(name, "epoch-", "", epoch_file_name);
}

std::string part_file_name(std::uint32_t number) {
  return fmt::format("part-{}.safetensors", number);
}

bool is_part_file_name(std::string_view name) {
  return number_in<std::uint32_t>(name, "part-", ".safetensors", part_file_name).has_value();
}

std::string slot_tensor_name(std::string_view variable, std::string_view slot) {
  return fmt::format("{}#{}", variable, slot);
}

std::pair<std::string_view, std::string_view> split_tensor_name(std::string_view tensor) noexcept {
  const auto at = tensor.find('#');
  if (at == tensor.npos) return {tensor, {}};
  return {tensor.substr(0, at), tensor.substr(at + 1)};
}

bool is_variable_name(std::string_view name) noexcept {
  // Which means something else in safetensors files.
  return !name.empty() && name != "__metadata__" &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return c > ' ' && c < 0x7f && c != '#'; });
}

bool is_slot_name(std::string_view name) noexcept {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t shown_max = 80;
  std::string shown(text.substr(0, shown_max));
  for (auto& c : shown)
    if (c < 0x20 || c > 0x7e) c = '?';
  return fmt::format("\"{}{}\"", shown, text.size() > shown_max ? "..." : "");
}

struct content_hash::state {
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> xxh{XXH3_createState(), &XXH3_freeState};
};

content_hash::content_hash() : state_(std::make_unique<state>()) {
  expects(state_->xxh != nullptr && XXH3_128bits_reset(state_->xxh.get()) == XXH_OK,
          "xxHash has memory");
}

content_hash::~content_hash() = default;

void content_hash::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh.get(), bytes.data(), bytes.size());
}

std::string content_hash::text() const {
  const auto hash = XXH3_128bits_digest(state_->xxh.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string hash_of(std::span<const std::byte> bytes) {
  content_hash hash;
  hash.add(bytes);
  return hash.text();
}

result<void> check_manifest(const checkpoint_manifest& m, std::string_view file) {
  std::set<std::string_view> keys;
  for (const auto& [key, value] : m.schedule)
    if (!keys.insert(key).second)
      return bad(file, fmt::format("schedule: {} is there twice", in_quotes(key)));
  auto problem = problem_of(m.variables);
  if (problem.empty()) problem = problem_of(m.parts, m.variables);
  if (!problem.empty()) return bad(file, problem);
  return {};
}

result<std::string> to_text(const checkpoint_manifest& m, std::string_view file) {
  if (auto ok = check_manifest(m, file); !ok) return std::move(ok.error());
  json tree = {{"format", format_name}, {"version", version_now}};
  tree.update(writer().write(m));
  auto text = tree.dump(2, ' ', false, json::error_handler_t::replace);
  text.replace(text.size() - 2, 2, ",\n");  // the closing brace comes after the hash
  text += last_lines(hash_of(std::as_bytes(std::span(text))));
  auto back = parse_manifest(std::as_bytes(std::span(text)), file);
  if (!back) return std::move(back.error());
  if (*back != m) return bad(file, "a string in it is not valid UTF-8");
  return text;
}

result<checkpoint_manifest> parse_manifest(std::span<const std::byte> bytes,
                                           std::string_view file) {
  if (bytes.size() > manifest_bytes_max)
    return bad(file, fmt::format("it has {} bytes, expected at most {}", bytes.size(),
                                 manifest_bytes_max));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto end_characters = last_lines(std::string(32, '0')).size();
  const auto hashed = bytes.first(bytes.size() - std::min(bytes.size(), end_characters));
  if (text.substr(hashed.size()) != last_lines(hash_of(hashed)))
    return bad(
        file,
        "it is damaged, cut short or not written by Troupe: the hash in its last line does not fit");
  const auto tree = parse_object(text);
  if (!tree) return bad(file, "it is not a JSON object, or is nested too deeply");
  std::optional<std::string> failure;
  std::string format;
  std::uint64_t version = 0;
  reader read{*tree, "", failure};
  read("format", format), read("version", version);
  if (!failure && format != format_name)
    failure = fmt::format("format is {}, not \"{}\"", in_quotes(format), format_name);
  if (failure) return bad(file, *failure);
  if (version > version_now)
    return error(
        error_code::usage,
        fmt::format("{}: made by a newer Troupe: its version is {}, this one reads up to {}", file,
                    version, version_now));
  checkpoint_manifest m;
  fields(read, m);
  if (failure) return bad(file, *failure);
  if (auto ok = check_manifest(m, file); !ok) return std::move(ok.error());
  return m;
}

std::string to_text(const checkpoint_claimant& c) {
  return writer().write(c).dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

result<checkpoint_claimant> parse_claimant(std::span<const std::byte> bytes,
                                           std::string_view file) {
  std::optional<std::string> failure;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto tree = bytes.size() <= claim_bytes_max ? parse_object(text) : std::nullopt;
  checkpoint_claimant c;
  if (tree)
    reader{*tree, "", failure}.read(*tree, c, "");
  else
    failure = "it is not a JSON object";
  if (failure)
    return error(error_code::usage,
                 fmt::format("{}: not a claim that can be read: {}", file, *failure));
  return c;
}

std::string describe(const checkpoint_claimant& c) {
  return fmt::format("client {} (pid {} on host {})", in_quotes(c.client), c.pid,
                     in_quotes(c.host));
}

result<void> compare_slots(std::string_view variable, std::span<const std::string> has,
                           std::span<const std::string> wanted) {
  if (std::is_permutation(has.begin(), has.end(), wanted.begin(), wanted.end())) return {};
  const auto text = [](std::span<const std::string> slots) {
    return slots.empty() ? std::string("no slots") : fmt::format("{}", fmt::join(slots, ", "));
  };
  return error(
      error_code::usage,
      fmt::format(
          "the checkpoint is of another optimizer: it has {} for variable '{}', but this run's "
          "optimizer needs {}",
          text(has), variable, text(wanted)));
}

std::vector<std::string> compare_schedule(const checkpoint_manifest& m,
                                          const checkpoint_schedule& wanted) {
  const std::map<std::string_view, std::string_view> made(m.schedule.begin(), m.schedule.end());
  const std::map<std::string_view, std::string_view> now(wanted.begin(), wanted.end());
  std::vector<std::string> differences;
  for (const auto& [key, value] : wanted) {
    const auto there = made.find(key);
    if (there == made.end())
      differences.push_back(
          fmt::format("{}: this run has {}, the checkpoint does not say", key, value));
    else if (there->second != value)
      differences.push_back(fmt::format("{}: the checkpoint was made with {}, this run has {}", key,
                                        there->second, value));
  }
  for (const auto& [key, value] : m.schedule)
    if (!now.contains(key))
      differences.push_back(
          fmt::format("{}: the checkpoint was made with {}, this run does not say", key, value));
  return differences;
}

}  // namespace troupe
