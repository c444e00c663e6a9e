#include "troupe/runtime/flow/each_file.hpp"

#include "troupe/runtime/flow/function_id.hpp"

#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace troupe {
namespace {

namespace fs = std::filesystem;

// There is nothing to go on with.
source_state give_up(error e, stage_output& out) {
  out.fail(std::move(e));
  return source_state::over;
}

}  // namespace

result<std::vector<found_file>> matching(const std::string& pattern, bool follows_out) {
  const auto slash = pattern.rfind('/');
  const auto folder = slash == std::string::npos ? std::string(".") : pattern.substr(0, slash);
  const auto last = slash == std::string::npos ? pattern : pattern.substr(slash + 1);
  const bool is_pattern = last.find_first_of("*?[") != std::string::npos;
  if (last.empty())
    return error(error_code::usage,
                 fmt::format("{}: names a folder; add the files, as in {}*", pattern, pattern));
  std::error_code why;
  const auto root = fs::canonical(folder.empty() ? "/" : folder, why);
  if (why) return error(error_code::not_found, fmt::format("{}: {}", folder, why.message()));
  std::vector<found_file> all;
  const auto add = [&](const std::string& path) {
    struct stat s{};
    if (::stat(path.c_str(), &s) != 0) {
      if (errno != ENOENT)  // gone again, or a link to nothing
        all.push_back(
            {path, 0, 0, 0,
             error(error_code::failed, fmt::format("{}: {}", path, std::strerror(errno)))});
      return;
    }
    if (!S_ISREG(s.st_mode)) return;
    if (!follows_out) {
      std::error_code unknown;
      const auto real = fs::canonical(path, unknown);
      const auto [end, at] = std::mismatch(root.begin(), root.end(), real.begin(), real.end());
      if (!unknown && end != root.end()) {
        all.push_back(
            {path, 0, 0, 0,
             error(error_code::denied, fmt::format("{}: a link that leads out of its folder, to {} "
                                                   "(.follows_links_out takes such)",
                                                   path, real.string()))});
        return;
      }
    }
    all.push_back({path, s.st_size,
                   std::int64_t{s.st_mtim.tv_sec} * 1'000'000'000 + s.st_mtim.tv_nsec,
                   std::uint64_t{s.st_ino}});
  };
  if (!is_pattern) {
    add(pattern);
    return all;
  }
  auto at = fs::directory_iterator(folder.empty() ? "/" : folder, why);
  if (why) return error(error_code::not_found, fmt::format("{}: {}", folder, why.message()));
  for (; at != fs::directory_iterator(); at.increment(why)) {
    const auto name = at->path().filename().string();
    if (::fnmatch(last.c_str(), name.c_str(), FNM_PERIOD) != 0) continue;
    const auto path = slash == std::string::npos ? name : pattern.substr(0, slash + 1) + name;
    add(path);
    if (why) break;
  }
  if (why) return error(error_code::failed, fmt::format("{}: {}", folder, why.message()));
  std::ranges::sort(all, {}, &found_file::path);
  return all;
}

source_state each_file::produce(stage_output& out) {
  if (!has_looked_) {
    has_looked_ = true;
    auto found = matching(pattern_, follows_out_);
    // Of a checkpoint: all that there were had been read, and have gone since.
    const bool is_done = !goes_on_at_.empty() && !goes_on_inside_;
    if (is_done && (found ? found->empty() : found.error().code() == error_code::not_found))
      return source_state::over;
    if (!found) return give_up(std::move(found.error()), out);
    if (found->empty())
      return give_up(error(error_code::not_found, fmt::format("{}: no such file", pattern_)), out);
    files_ = std::move(*found);
    if (!goes_on_at_.empty())
      if (auto ok = skip_to_position(out); !ok) {
        out.fail(std::move(ok.error()));
        return source_state::more;
      }
  }
  if (!is_open_) {
    if (next_ == files_.size()) return source_state::over;
    auto& file = files_[next_++];
    const auto& path = file.path;
    out.set_label(label_of(path));
    if (file.why) {
      out.fail(std::move(*file.why));
      return source_state::more;
    }
    if (auto ok = open(path); !ok) {
      out.fail(std::move(ok.error()));
      return source_state::more;
    }
    is_open_ = true;
    reads_ = 0;
  }
  ++reads_;
  auto more = read(out);
  if (!more) out.fail(std::move(more.error()));
  if (!more || !*more) is_open_ = false;
  return source_state::more;
}

result<tensor> each_file::keep(const item_types&) {
  // Nobody has asked for an item since it was told where to go on.
  const auto& at = has_looked_ && next_ > 0 ? files_[next_ - 1].path : goes_on_at_;
  const bool is_inside = has_looked_ ? is_open_ : goes_on_inside_;
  return saved_by([&](byte_writer& w) { w.text(at), w.number(is_inside), w.number(reads_); });
}

result<void> each_file::reopen(const tensor& kept, const item_types&) {
  const bool is_read = load_from(kept, [&](byte_reader& r) {
    goes_on_at_ = r.text();
    read_value(r, goes_on_inside_);
    reads_ = r.number<std::uint64_t>();
  });
  if (is_read) return {};
  return error(error_code::failed, "its position is damaged");
}

// What was read of the file before is read again, to nobody: formats that are packed can be read
// from their beginning alone.
result<void> each_file::skip_to_position(stage_output& out) {
  const auto after = std::ranges::upper_bound(files_, goes_on_at_, {}, &found_file::path);
  next_ = static_cast<std::size_t>(after - files_.begin());
  if (!goes_on_inside_) return {};
  const auto lost = [this](const std::string& why) {
    return error(error_code::failed,
                 fmt::format("{}: {} items of it were read before the checkpoint, and it {}",
                             goes_on_at_, reads_, why));
  };
  if (next_ == 0 || files_[next_ - 1].path != goes_on_at_) return lost("is gone");
  out.set_label(label_of(goes_on_at_));
  if (auto ok = open(goes_on_at_); !ok) return ok;
  struct unheard {
    stage_output& out;
    explicit unheard(stage_output& o) : out(o) { out.set_unheard(true); }
    unheard(const unheard&) = delete;
    unheard& operator=(const unheard&) = delete;
    ~unheard() { out.set_unheard(false); }
  } const nobody_hears(out);
  bool is_short = false;
  for (std::uint64_t i = 0; i < reads_ && !is_short; ++i) {
    const auto more = read(out);
    is_short = !more || !*more;
    out.take_failure();  // of one item: it was told of it then
  }
  if (is_short) return lost("has fewer now");
  is_open_ = true;
  return {};
}

result<void> each_unpacked_file::open(const std::string& path) {
  auto bytes = open_any(path);
  if (!bytes) return std::move(bytes.error());
  return begin(std::move(*bytes));
}

}  // namespace troupe
