#pragma once
// A disk in memory with faults. What was not synced is lost, kept or cut short at a crash, as a
// seed says.
//
// Operations (every call of the disk and of its files) are counted from 0. A fault lets one or
// several of them fail; a stop lets all from one on fail, as if the process were gone, until
// end_process() or crash().
//
// Threading: one thread. Outlives its files; its locks may outlive it.
//
// SD-1  Equal calls and equal seeds give equal disks.
// SD-2  After crash() a file has what was synced, and of each later write all, nothing or its
//       beginning; a folder has the names that it had when it was synced, and of each later change
//       all or nothing, independently of the others.
// SD-3  Nothing that was synced, under names that were synced, is lost.

#include "troupe/devices/files/disk.hpp"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>

namespace troupe {

class sim_disk final : public disk {
 public:
  enum class fault : std::uint8_t { no_space, broken };

  std::uint64_t operations() const noexcept { return operations_; }
  // Operations first, first + 1, ..: `count` of them. A write that fails has written its first
  // half.
  void fail(std::uint64_t first, fault f, std::uint64_t count = 1) { faults_ = {first, count, f}; }
  void stop_at(std::uint64_t operation) { stop_ = operation; }
  void run_all() { faults_.count = 0, stop_ = never; }
  // Of all files together; a write beyond it writes what fits.
  void set_capacity(std::uint64_t bytes) { capacity_bytes_ = bytes; }
  // Called before each operation with its number, outside of itself.
  void before_each(std::function<void(std::uint64_t)> f) { before_ = std::move(f); }

  // Open files and locks are gone; the system has the rest.
  void end_process() {
    ++life_;
    locks_ = std::make_shared<std::set<std::string>>();
    run_all();
  }
  // The machine lost its power.
  void crash(std::uint64_t seed) {
    end_process();
    random_.seed(seed);
    odds_ = static_cast<unsigned>(seed % 4);
    std::set<const node*> seen;
    lose(*root_, seen);
  }

  // What follows counts no operation and meets no fault.
  std::optional<std::vector<std::byte>> contents(const std::string& path) const {
    const auto n = find(path);
    if (n == nullptr || n->is_folder) return std::nullopt;
    return n->bytes;
  }
  // A file with nothing that a crash could take.
  bool is_durable(const std::string& path) const {
    const auto n = find(path);
    return n != nullptr && !n->is_folder && n->pending.empty();
  }
  void flip(const std::string& path, std::size_t bit) {
    const auto n = find(path);
    expects(n != nullptr && bit / 8 < n->bytes.size() && n->pending.empty(),
            "a bit of a durable file");
    n->bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    n->durable = n->bytes;
  }
  // A durable file; its folder exists.
  void put(const std::string& path, std::span<const std::byte> bytes) {
    const auto [folder, name] = split(path);
    const auto parent = find(folder);
    expects(parent != nullptr && parent->is_folder, "a folder for the file");
    const auto n = std::make_shared<node>();
    n->bytes.assign(bytes.begin(), bytes.end());
    n->durable = n->bytes;
    parent->names[name] = parent->durable_names[name] = n;
  }
  std::uint64_t used_bytes() const { return used(*root_); }

  result<std::unique_ptr<disk_file>> create(const std::string& path, create_mode mode) override {
    if (auto ok = begin("write", path); !ok) return std::move(ok.error());
    const auto [folder, name] = split(path);
    const auto parent = find(folder);
    if (parent == nullptr) return no_such("write", path);
    if (!parent->is_folder || name.empty()) return unusable("write", path);
    auto n = find(path);
    if (n != nullptr && mode == create_mode::exclusive)
      return error(error_code::denied, fmt::format("cannot create {}: it exists already", path));
    if (n != nullptr && n->is_folder) return unusable("write", path);
    if (n == nullptr) {
      n = std::make_shared<node>();
      change_names(*parent, {{name, n}});
    } else {
      n->bytes.clear();
      n->pending.push_back({true, {}});
    }
    return std::unique_ptr<disk_file>(std::make_unique<file>(*this, n, path));
  }

  result<std::vector<std::byte>> read(const std::string& path, std::uint64_t bytes_max) override {
    if (auto ok = begin("read", path); !ok) return std::move(ok.error());
    const auto n = find(path);
    if (n == nullptr) return no_such("read", path);
    if (n->is_folder || n->bytes.size() > bytes_max) return unusable("read", path);
    return n->bytes;
  }

  result<std::uint64_t> size(const std::string& path) override {
    if (auto ok = begin("look at", path); !ok) return std::move(ok.error());
    const auto n = find(path);
    if (n == nullptr) return no_such("look at", path);
    if (n->is_folder) return unusable("look at", path);
    return std::uint64_t{n->bytes.size()};
  }

  result<void> rename(const std::string& from, const std::string& to) override {
    if (auto ok = begin("rename", to); !ok) return ok;
    const auto [from_folder, from_name] = split(from);
    const auto [to_folder, to_name] = split(to);
    const auto source = find(from_folder), target = find(to_folder), moved = find(from),
               there = find(to);
    if (moved == nullptr || target == nullptr) return no_such("rename", from);
    if (!target->is_folder || (there != nullptr && (there->is_folder || moved->is_folder)))
      return unusable("rename", to);
    if (source == target) {
      change_names(*target, {{from_name, nullptr}, {to_name, moved}});
    } else {
      change_names(*target, {{to_name, moved}});
      change_names(*source, {{from_name, nullptr}});
    }
    return {};
  }

  result<void> remove(const std::string& path) override {
    if (auto ok = begin("remove", path); !ok) return ok;
    const auto [folder, name] = split(path);
    const auto n = find(path);
    if (n == nullptr) return no_such("remove", path);
    if (!n->names.empty() || name.empty()) return unusable("remove", path);
    change_names(*find(folder), {{name, nullptr}});
    return {};
  }

  result<std::vector<std::string>> list(const std::string& folder) override {
    if (auto ok = begin("list", folder); !ok) return std::move(ok.error());
    const auto n = find(folder);
    if (n == nullptr) return no_such("list", folder);
    if (!n->is_folder) return unusable("list", folder);
    std::vector<std::string> names;
    for (const auto& [name, child] : n->names) names.push_back(name);
    return names;
  }

  result<void> make_folder(const std::string& path) override {
    if (auto ok = begin("make the folder", path); !ok) return ok;
    auto at = root_;
    for (const auto& name : names_of(path)) {
      if (!at->is_folder) return unusable("make the folder", path);
      if (!at->names.contains(name)) {
        const auto made = std::make_shared<node>();
        made->is_folder = true;
        change_names(*at, {{name, made}});
      }
      at = at->names.at(name);
    }
    if (!at->is_folder) return unusable("make the folder", path);
    return {};
  }

  result<void> sync_folder(const std::string& path) override {
    if (auto ok = begin("make durable the folder", path); !ok) return ok;
    const auto n = find(path);
    if (n == nullptr) return no_such("make durable the folder", path);
    if (!n->is_folder) return unusable("make durable the folder", path);
    n->durable_names = n->names;
    n->pending_names.clear();
    return {};
  }

  result<std::unique_ptr<disk_lock>> lock(const std::string& path) override {
    if (auto made = create_if_missing(path); !made) return std::move(made.error());
    if (!locks_->insert(path).second)
      return error(error_code::denied,
                   fmt::format("cannot lock {}: another program holds it", path));
    return std::unique_ptr<disk_lock>(std::make_unique<held>(locks_, path));
  }

 private:
  struct node;
  struct change {
    bool is_truncation = false;
    std::vector<std::byte> appended;
  };
  // Nullptr: the name is gone.
  using name_change = std::vector<std::pair<std::string, std::shared_ptr<node>>>;
  struct node {
    bool is_folder = false;
    std::vector<std::byte> bytes, durable;
    std::vector<change> pending;
    std::map<std::string, std::shared_ptr<node>> names, durable_names;
    std::vector<name_change> pending_names;
  };

  class file final : public disk_file {
   public:
    file(sim_disk& d, std::shared_ptr<node> n, std::string path)
        : disk_(d), node_(std::move(n)), path_(std::move(path)), life_(d.life_) {}
    result<void> write(std::span<const std::byte> bytes) override {
      auto ok = disk_.begin("write", path_, life_);
      if (!ok && disk_.is_gone(life_)) return ok;
      const auto free = disk_.capacity_bytes_ - std::min(disk_.capacity_bytes_, disk_.used_bytes());
      const auto fits =
          bytes.first(std::min<std::uint64_t>(ok ? bytes.size() : bytes.size() / 2, free));
      node_->bytes.insert(node_->bytes.end(), fits.begin(), fits.end());
      node_->pending.push_back({false, {fits.begin(), fits.end()}});
      if (ok && fits.size() < bytes.size()) return disk_.failure("write", path_, fault::no_space);
      return ok;
    }
    result<void> sync() override {
      if (auto ok = disk_.begin("make durable", path_, life_); !ok) return ok;
      node_->durable = node_->bytes;
      node_->pending.clear();
      return {};
    }
    result<void> close() override { return disk_.begin("close", path_, life_); }

   private:
    sim_disk& disk_;
    std::shared_ptr<node> node_;
    std::string path_;
    std::uint64_t life_;
  };

  class held final : public disk_lock {
   public:
    held(std::shared_ptr<std::set<std::string>> locks, std::string path)
        : locks_(std::move(locks)), path_(std::move(path)) {}
    ~held() override { locks_->erase(path_); }

   private:
    std::shared_ptr<std::set<std::string>> locks_;
    std::string path_;
  };

  static constexpr std::uint64_t never = ~std::uint64_t{0};

  static error no_such(std::string_view doing, const std::string& path) {
    return {error_code::not_found,
            fmt::format("cannot {} {}: No such file or directory", doing, path)};
  }
  static error unusable(std::string_view doing, const std::string& path) {
    return {error_code::usage, fmt::format("cannot {} {}: it cannot be used so", doing, path)};
  }
  static error failure(std::string_view doing, const std::string& path, fault f) {
    return {error_code::failed, fmt::format("cannot {} {}: {}", doing, path,
                                            std::strerror(f == fault::no_space ? ENOSPC : EIO))};
  }

  // Of the process that asked for the latest operation.
  bool is_gone(std::uint64_t life) const noexcept { return operations_ > stop_ || life != life_; }

  // Counts an operation. `life`: of the process that asks.
  result<void> begin(std::string_view doing, const std::string& path,
                     std::optional<std::uint64_t> life = {}) {
    if (before_) {
      const auto f = std::exchange(before_, {});
      f(operations_);
      before_ = f;
    }
    const auto n = operations_++;
    if (is_gone(life.value_or(life_)))
      return error(error_code::failed,
                   fmt::format("cannot {} {}: the process is gone", doing, path));
    if (n >= faults_.first && n - faults_.first < faults_.count)
      return failure(doing, path, faults_.what);
    return {};
  }

  result<void> create_if_missing(const std::string& path) {
    if (auto ok = begin("lock", path); !ok) return ok;
    const auto [folder, name] = split(path);
    const auto parent = find(folder), n = find(path);
    if (parent == nullptr) return no_such("lock", path);
    if (!parent->is_folder || (n != nullptr && n->is_folder)) return unusable("lock", path);
    if (n == nullptr) change_names(*parent, {{name, std::make_shared<node>()}});
    return {};
  }

  static std::vector<std::string> names_of(const std::string& path) {
    std::vector<std::string> names;
    for (std::size_t at = 0; at <= path.size();) {
      const auto end = std::min(path.find('/', at), path.size());
      const auto name = path.substr(at, end - at);
      if (!name.empty() && name != ".") names.push_back(name);
      at = end + 1;
    }
    return names;
  }
  static std::pair<std::string, std::string> split(const std::string& path) {
    const auto slash = path.rfind('/');
    if (slash == std::string::npos) return {".", path};
    return {path.substr(0, slash), path.substr(slash + 1)};
  }

  std::shared_ptr<node> find(const std::string& path) const {
    auto at = root_;
    for (const auto& name : names_of(path)) {
      const auto child = at->names.find(name);
      if (child == at->names.end()) return nullptr;
      at = child->second;
    }
    return at;
  }

  static void apply(std::map<std::string, std::shared_ptr<node>>& names, const name_change& c) {
    for (const auto& [name, n] : c) {
      if (n != nullptr)
        names[name] = n;
      else
        names.erase(name);
    }
  }
  static void change_names(node& folder, name_change c) {
    apply(folder.names, c);
    folder.pending_names.push_back(std::move(c));
  }
  static std::uint64_t used(const node& n) {
    std::uint64_t bytes = n.bytes.size();
    for (const auto& [name, child] : n.names) bytes += used(*child);
    return bytes;
  }

  // A seed in four keeps everything, one loses everything.
  bool survives() { return odds_ == 0 || (odds_ != 1 && random_() % 2 == 0); }
  std::size_t kept_of(std::size_t bytes) {
    if (survives()) return bytes;
    return odds_ == 1 || random_() % 2 == 0 ? 0 : static_cast<std::size_t>(random_() % (bytes + 1));
  }

  void lose(node& n, std::set<const node*>& seen) {
    if (!seen.insert(&n).second) return;
    // A write that is lost before one that is kept leaves zeros.
    std::size_t end = n.durable.size();
    for (const auto& c : n.pending) {
      if (c.is_truncation) {
        if (survives()) n.durable.clear(), end = 0;
        continue;
      }
      const auto kept = kept_of(c.appended.size());
      if (kept > 0) {
        n.durable.resize(std::max(n.durable.size(), end + kept));
        std::copy_n(c.appended.begin(), kept, n.durable.begin() + static_cast<std::ptrdiff_t>(end));
      }
      end += c.appended.size();
    }
    n.pending.clear();
    n.bytes = n.durable;
    for (const auto& c : n.pending_names)
      if (survives()) apply(n.durable_names, c);
    n.pending_names.clear();
    n.names = n.durable_names;
    for (const auto& [name, child] : n.names) lose(*child, seen);
  }

  struct faults {
    std::uint64_t first = 0, count = 0;
    fault what = fault::broken;
  };

  std::shared_ptr<node> root_ = [] {
    auto n = std::make_shared<node>();
    n->is_folder = true;
    return n;
  }();
  std::shared_ptr<std::set<std::string>> locks_ = std::make_shared<std::set<std::string>>();
  std::uint64_t operations_ = 0;
  std::uint64_t stop_ = never;
  faults faults_;
  std::uint64_t capacity_bytes_ = never;
  std::uint64_t life_ = 0;
  std::function<void(std::uint64_t)> before_;
  std::mt19937_64 random_;
  unsigned odds_ = 0;
};

}  // namespace troupe
