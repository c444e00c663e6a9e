#include "tools/troupe-tool/contexts.hpp"

#include "tools/troupe-tool/near_names.hpp"
#include "troupe/runtime/text/join_place.hpp"
#include "troupe/runtime/text/json_line.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace troupe {

namespace {

using context_json = nlohmann::ordered_json;

template <class P>
auto texts_of(P& p) {
  return std::array<std::pair<const char*, decltype(&p.cluster)>, 5>{
      {{"cluster", &p.cluster},
       {"token_file", &p.token_file},
       {"tls_certificate", &p.protect.certificate},
       {"tls_key", &p.protect.key},
       {"tls_ca", &p.protect.ca}}};
}

template <class P>
auto switches_of(P& p) {
  return std::array<std::pair<const char*, decltype(&p.protect.tls)>, 2>{
      {{"tls", &p.protect.tls}, {"insecure", &p.protect.insecure}}};
}

context_json json_of(const cluster_place& p) {
  auto out = context_json::object();
  for (const auto& [key, text] : texts_of(p))
    if (!text->empty()) out[key] = *text;
  if (!p.join.empty()) out["join"] = p.join;
  for (const auto& [key, is_on] : switches_of(p))
    if (*is_on) out[key] = true;
  return out;
}

error bad(const std::string& what) { return {error_code::usage, what}; }

result<void> read_key(cluster_place& p, const std::string& key, const context_json& value) {
  for (const auto& [name, text] : texts_of(p))
    if (key == name) {
      if (!value.is_string()) return bad(fmt::format("'{}' should be a text", key));
      *text = value.get<std::string>();
      return {};
    }
  for (const auto& [name, is_on] : switches_of(p))
    if (key == name) {
      if (!value.is_boolean()) return bad(fmt::format("'{}' should be true or false", key));
      *is_on = value.get<bool>();
      return {};
    }
  if (key != "join") return bad(fmt::format("there is no key '{}'", key));
  if (!value.is_array()) return bad("'join' should be a list of HOST:PORT");
  for (const auto& one : value) {
    if (!one.is_string()) return bad("'join' should be a list of HOST:PORT");
    p.join.push_back(one.get<std::string>());
  }
  return {};
}

result<cluster_place> read_place(const std::string& name, const context_json& tree) {
  cluster_place p;
  if (!tree.is_object()) return bad(fmt::format("context '{}' is no object", name));
  for (const auto& [key, value] : tree.items())
    if (const auto ok = read_key(p, key, value); !ok)
      return bad(fmt::format("context '{}': {}", name, ok.error().message()));
  return p;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

std::vector<std::string> split_by_commas(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto comma = text.find(',');
    if (comma != 0) parts.emplace_back(text.substr(0, comma));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return parts;
}

struct descriptor {
  explicit descriptor(int n) : fd(n) {}
  ~descriptor() {
    if (fd >= 0) ::close(fd);
  }
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  int fd;
};

// A file that is not there has none. A pipe, or a folder, is not read.
result<contexts> read_contexts(const std::string& file) {
  constexpr std::size_t bytes_max = 1 << 20;
  const auto cannot = [&](std::string_view why) {
    return bad(fmt::format("{}: it cannot be read: {}", file, why));
  };
  const descriptor in(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (in.fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return contexts();
  if (in.fd < 0) return cannot(std::strerror(errno));
  struct stat status{};
  if (::fstat(in.fd, &status) != 0 || !S_ISREG(status.st_mode)) return cannot("it is no file");
  std::string text;
  std::array<char, 4096> piece{};
  for (;;) {
    const auto n = ::read(in.fd, piece.data(), piece.size());
    if (n < 0) return cannot(std::strerror(errno));
    if (n == 0) break;
    text.append(piece.data(), static_cast<std::size_t>(n));
    if (text.size() > bytes_max) return cannot("it is too long");
  }
  auto known = parse_contexts(text);
  if (known) return known;
  return bad(fmt::format("{}: {} (mend it, or remove the file)", file, known.error().message()));
}

std::string file_of_contexts() {
  if (auto file = variable("TROUPE_CONTEXTS"); !file.empty()) return file;
  auto folder = variable("XDG_CONFIG_HOME");
  if (folder.empty() && !variable("HOME").empty()) folder = variable("HOME") + "/.config";
  return folder.empty() ? std::string() : folder + "/troupe/contexts.json";
}

// Whatever the first does not say.
void fill(cluster_place& p, const cluster_place& from) {
  const auto into = texts_of(p);
  const auto source = texts_of(from);
  // Files of one end go together, and not with --insecure.
  const bool has_files = p.protect.has_files() || p.protect.insecure;
  for (std::size_t i = 0; i < into.size(); ++i)
    if (into[i].second->empty() && !(i >= 2 && has_files)) *into[i].second = *source[i].second;
  if (p.join.empty()) p.join = from.join;
  if (p.protect.tls || p.protect.insecure) return;
  p.protect.tls = from.protect.tls;
  p.protect.insecure = from.protect.insecure;
}

result<const cluster_place*> find_context(const std::string& name, const surroundings& around) {
  if (!around.why_unknown.empty()) return bad(around.why_unknown);
  const auto at = around.known.places.find(name);
  if (at != around.known.places.end()) return &at->second;
  std::vector<std::string> names;
  for (const auto& [known, place] : around.known.places) names.push_back(known);
  return error(error_code::not_found,
               fmt::format("there is no context '{}'{}; troupe context list shows all", name,
                           did_you_mean(name, names)));
}

}  // namespace

result<contexts> parse_contexts(std::string_view text) {
  const auto tree = context_json::parse(text, nullptr, false);
  if (tree.is_discarded() || !tree.is_object()) return bad("it is no JSON object");
  contexts c;
  for (const auto& [key, value] : tree.items()) {
    if (key == "current" && value.is_string())
      c.current = value.get<std::string>();
    else if (key == "contexts" && value.is_object())
      for (const auto& [name, place] : value.items()) {
        auto one = read_place(name, place);
        if (!one) return one.error();
        c.places.emplace(name, std::move(*one));
      }
    else
      return bad(
          fmt::format("'{}' is no key, or has a value of the wrong kind; there are "
                      "current (a text) and contexts (an object)",
                      key));
  }
  return c;
}

std::string to_json(const contexts& c) {
  auto places = context_json::object();
  for (const auto& [name, place] : c.places) places[name] = json_of(place);
  auto tree = context_json::object();
  tree["current"] = c.current;
  tree["contexts"] = std::move(places);
  return json_line(tree);
}

std::string to_json(const cluster_place& p) { return json_line(json_of(p)); }

surroundings look_around() {
  surroundings s;
  s.context = variable("TROUPE_CONTEXT");
  s.environment.cluster = variable("TROUPE_CLUSTER");
  s.environment.join = split_by_commas(variable("TROUPE_JOIN"));
  s.environment.token_file = variable("TROUPE_TOKEN_FILE");
  s.file = file_of_contexts();
  if (s.file.empty()) return s;
  auto known = read_contexts(s.file);
  if (known)
    s.known = std::move(*known);
  else
    s.why_unknown = known.error().message();
  return s;
}

result<contexts> change_contexts(const std::string& named, const change_of_contexts& change) {
  if (named.empty())
    return bad("there is no place for contexts: set HOME, XDG_CONFIG_HOME or TROUPE_CONTEXTS");
  std::error_code none;
  std::filesystem::create_directories(std::filesystem::path(named).parent_path(), none);
  // Where a link leads, so that the link stays.
  const auto real = std::filesystem::weakly_canonical(named, none);
  const auto file = none ? named : real.string();
  const auto failed = [&] {
    return error(error_code::failed,
                 fmt::format("{}: it cannot be written: {}", file, std::strerror(errno)));
  };
  const descriptor lock(::open((file + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.fd < 0 || ::flock(lock.fd, LOCK_EX) != 0) return failed();
  auto known = read_contexts(file);
  if (!known) return known;
  if (auto changed = change(*known); !changed) return changed.error();
  auto next = file + ".XXXXXX";
  const descriptor out(::mkstemp(next.data()));  // readable for its user alone
  if (out.fd < 0) return failed();
  const auto text = to_json(*known) + "\n";
  const bool is_written =
      ::write(out.fd, text.data(), text.size()) == ssize_t(text.size()) && ::fsync(out.fd) == 0;
  if (is_written && ::rename(next.c_str(), file.c_str()) == 0) return known;
  auto e = failed();
  ::unlink(next.c_str());
  return e;
}

result<void> check_place(const cluster_place& p) {
  for (const auto& join : p.join)
    if (auto place = parse_join(join); !place) return place.error();
  if (p.protect.insecure && (p.protect.tls || p.protect.has_files()))
    return bad("--insecure excludes --tls and certificates");
  const int files = !p.protect.certificate.empty() + !p.protect.key.empty() + !p.protect.ca.empty();
  if (files == 1 || files == 2) return bad("--tls-certificate, --tls-key and --tls-ca go together");
  return {};
}

result<cluster_place> resolve_place(const cluster_place& flags, const std::string& named,
                                    const surroundings& around, std::string& used) {
  auto place = flags;
  if (!named.empty()) {
    const auto found = find_context(named, around);
    if (!found) return found.error();
    used = named;
    fill(place, **found);
    return place;
  }
  const bool is_said = flags.has_address() || around.environment.has_address();
  auto environment = around.environment;
  if (flags.has_address()) environment.join.clear();
  if (!flags.cluster.empty() && flags.join.empty()) environment.token_file.clear();
  fill(place, environment);
  const auto& implied = around.context.empty() ? around.known.current : around.context;
  if (is_said) return place;
  if (!around.why_unknown.empty()) return bad(around.why_unknown);
  if (implied.empty()) return place;
  const auto found = find_context(implied, around);
  if (!found) return found.error();
  used = implied;
  fill(place, **found);
  return place;
}

}  // namespace troupe
