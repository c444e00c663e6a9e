#include "troupe/runtime/flow/file_stages.hpp"

#include "troupe/devices/files/host_disk.hpp"
#include "troupe/devices/files/line_reader.hpp"
#include "troupe/devices/files/npy_file.hpp"
#include "troupe/devices/files/whole_file.hpp"
#include "troupe/runtime/flow/each_file.hpp"
#include "troupe/runtime/flow/function_id.hpp"
#include "troupe/runtime/flow/value_codec.hpp"
#include "troupe/runtime/text/printable.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>

namespace troupe {
namespace {

namespace fs = std::filesystem;

class path_source final : public each_file {
 public:
  using each_file::each_file;

 private:
  result<void> open(const std::string& path) override {
    path_ = path;
    return {};
  }
  result<bool> read(stage_output& out) override {
    out.put(0, any_value(std::move(path_)));
    return false;
  }
  std::string path_;
};

class line_source final : public each_unpacked_file {
 public:
  using each_unpacked_file::each_unpacked_file;

 private:
  result<void> begin(std::unique_ptr<byte_source> bytes) override {
    reader_.emplace(std::move(bytes));
    return {};
  }
  result<bool> read(stage_output& out) override {
    auto line = reader_->next();
    if (!line) return std::move(line.error());
    if (!*line) return false;
    out.put(0, any_value(std::string(**line)));
    return true;
  }
  std::optional<line_reader> reader_;
};

class csv_source final : public each_unpacked_file {
 public:
  csv_source(std::string pattern, bool follows_out, csv_options o)
      : each_unpacked_file(std::move(pattern), follows_out), options_(o) {}

 private:
  result<void> begin(std::unique_ptr<byte_source> bytes) override {
    reader_.emplace(std::move(bytes), options_);
    header_ = nullptr;
    if (!options_.has_header) return {};
    auto names = reader_->header();
    if (!names) return std::move(names.error());
    header_ = std::make_shared<const std::vector<std::string>>(names->begin(), names->end());
    return {};
  }
  result<bool> read(stage_output& out) override {
    auto row = reader_->next();
    if (!row) return std::move(row.error());
    if (!*row) return false;
    csv_line line;
    line.cells.assign((*row)->begin(), (*row)->end());
    line.header = header_;
    out.put(0, any_value(std::move(line)));
    return true;
  }
  csv_options options_;
  std::optional<csv_reader> reader_;
  std::shared_ptr<const std::vector<std::string>> header_;
};

class tar_source final : public each_unpacked_file {
 public:
  using each_unpacked_file::each_unpacked_file;

 private:
  result<void> begin(std::unique_ptr<byte_source> bytes) override {
    path_ = bytes->name();
    reader_.emplace(tar_reader(std::move(bytes)));
    return {};
  }
  result<bool> read(stage_output& out) override {
    auto sample = reader_->next();
    if (!sample) return std::move(sample.error());
    if (!*sample) return false;
    out.set_label(label_of(fmt::format("{}, {}", path_, (*sample)->key)));
    out.put(0, any_value(archive_sample{std::move(**sample)}));
    return true;
  }
  std::string path_;
  std::optional<tar_sample_reader> reader_;
};

class npy_source final : public each_file {
 public:
  using each_file::each_file;

 private:
  result<void> open(const std::string& path) override {
    auto all = load_npy(path);
    if (!all) return std::move(all.error());
    if (all->shape().rank() == 0)
      return error(error_code::failed, fmt::format("{}: a single number has no rows", path));
    all_ = std::move(*all);
    row_ = 0;
    return {};
  }
  result<bool> read(stage_output& out) override {
    if (row_ == all_.shape().size(0)) {
      all_ = {};
      return false;
    }
    std::vector<dim> rest;
    for (std::size_t i = 1; i < all_.shape().rank(); ++i) rest.push_back(all_.shape()[i]);
    auto row = tensor::make({all_.type(), *shape::from(rest)});
    const auto bytes = row.size_bytes();
    std::memcpy(row.bytes().data(), all_.bytes().data() + std::size_t(row_++) * bytes, bytes);
    out.put(0, any_value(std::move(row)));
    return true;
  }
  tensor all_;
  std::int64_t row_ = 0;
};

// What watch() knows of a file, in a checkpoint.
struct known_file {
  std::int64_t size = 0, changed_ns = 0;
  std::uint64_t inode = 0;
  bool was_given = false;
  static constexpr auto fields =
      troupe::fields<&known_file::size, &known_file::changed_ns, &known_file::inode,
                     &known_file::was_given>("size", "changed_ns", "inode", "was_given");
};

class watch_source final : public stage {
 public:
  watch_source(std::string pattern, bool follows_out, std::int64_t every_ns)
      : pattern_(std::move(pattern)), follows_out_(follows_out), every_ns_(every_ns) {}
  bool take(std::uint32_t, any_value&&, stage_output&) override { return false; }

  source_state produce(stage_output& out) override {
    if (ready_.empty()) {
      const auto now = out.now_ns();
      if (now < looks_at_) return source_state::later;
      looks_at_ = now + every_ns_;
      auto found = matching(pattern_, follows_out_);
      if (!found) {
        out.fail(std::move(found.error()));
        return source_state::later;
      }
      look(*found);
      if (ready_.empty()) return source_state::later;
    }
    auto file = std::move(ready_.back());
    ready_.pop_back();
    out.set_label(label_of(file.path));
    if (file.why)
      out.fail(std::move(*file.why));
    else
      out.put(0, any_value(std::move(file.path)));
    return source_state::more;
  }
  std::int64_t wakes_at() const override { return looks_at_; }
  // What was found and not given yet is found again.
  std::optional<tensor> save() const override {
    std::map<std::string, known_file> known;
    for (const auto& [path, s] : known_) known[path] = {s.size, s.changed_ns, s.inode, s.was_given};
    for (const auto& f : ready_) known[f.path].was_given = false;
    return saved_by([&](byte_writer& w) { write_value(w, known), w.number(is_first_); });
  }
  bool load(const tensor& saved) override {
    std::map<std::string, known_file> known;
    const bool is_read =
        load_from(saved, [&](byte_reader& r) { read_value(r, known), read_value(r, is_first_); });
    for (const auto& [path, k] : known) known_[path] = {k.size, k.changed_ns, k.inode, k.was_given};
    return is_read;
  }

 private:
  // What has stayed as it was since the last look is complete. Those of the first look are.
  void look(const std::vector<found_file>& found) {
    std::map<std::string, state> now;
    for (const auto& f : found) {
      state s{f.size, f.changed_ns, f.inode, false};
      const auto before = known_.find(f.path);
      const bool is_same = before != known_.end() && before->second.is_same(s);
      s.was_given = is_same && before->second.was_given;
      if (!s.was_given && (is_same || is_first_)) {
        s.was_given = true;
        ready_.push_back(f);
      }
      now.emplace(f.path, s);
    }
    known_ = std::move(now);
    is_first_ = false;
    std::ranges::reverse(ready_);
  }
  struct state {
    std::int64_t size, changed_ns;
    std::uint64_t inode;
    bool was_given;
    bool is_same(const state& o) const {
      return size == o.size && changed_ns == o.changed_ns && inode == o.inode;
    }
  };
  std::string pattern_;
  bool follows_out_, is_first_ = true;
  std::int64_t every_ns_, looks_at_ = 0;
  std::map<std::string, state> known_;
  std::vector<found_file> ready_;  // the next one last
};

class timer_source final : public stage {
 public:
  explicit timer_source(std::int64_t every_ns) : every_ns_(every_ns) {}
  bool take(std::uint32_t, any_value&&, stage_output&) override { return false; }
  source_state produce(stage_output& out) override {
    const auto now = out.now_ns();
    if (next_ == 0) next_ = now;
    if (now < next_) return source_state::later;
    next_ += every_ns_ * ((now - next_) / every_ns_ + 1);
    out.put(0, any_value(n_++));
    return source_state::later;
  }
  std::int64_t wakes_at() const override { return next_; }
  std::optional<tensor> save() const override {
    return saved_by([&](byte_writer& w) { w.number(n_); });
  }
  bool load(const tensor& saved) override {
    return load_from(saved, [&](byte_reader& r) { n_ = r.number<std::uint64_t>(); });
  }

 private:
  std::int64_t every_ns_, next_ = 0;
  std::uint64_t n_ = 0;
};

class print_stage final : public stage {
 public:
  explicit print_stage(std::function<std::string(any_value&)> text) : text_(std::move(text)) {}
  bool take(std::uint32_t, any_value&& v, stage_output& out) override {
    buffer_ += text_(v);
    buffer_ += '\n';
    const auto now = out.now_ns();
    if (flushes_at_ == never_ns) flushes_at_ = now + 5'000'000;
    if (buffer_.size() >= 1 << 16 || now >= flushes_at_) flush();
    return false;
  }
  bool on_time(std::int64_t, stage_output&) override {
    flush();
    return false;
  }
  bool end(std::uint32_t, stage_output&) override {
    flush();
    return false;
  }
  std::int64_t wakes_at() const override { return flushes_at_; }
  bool is_over() const override { return is_closed_; }
  // It is flushed soon; what nobody has read is never done.
  bool has_under_way() const override { return !buffer_.empty() || is_closed_; }

 private:
  void flush() {
    flushes_at_ = never_ns;
    if (std::fwrite(buffer_.data(), 1, buffer_.size(), stdout) != buffer_.size() ||
        std::fflush(stdout) != 0)
      is_closed_ = true;
    buffer_.clear();
  }
  std::function<std::string(any_value&)> text_;
  std::string buffer_;
  std::int64_t flushes_at_ = never_ns;
  bool is_closed_ = false;
};

constexpr std::size_t npy_head_bytes = 256;
std::string npy_head(const tensor_spec& of, std::uint64_t rows) {
  const char* type = "";
  switch (of.type) {
    case dtype::f32: type = "<f4"; break;
    case dtype::f64: type = "<f8"; break;
    case dtype::i32: type = "<i4"; break;
    case dtype::i64: type = "<i8"; break;
    case dtype::u8: type = "|u1"; break;
    case dtype::f16: type = "<f2"; break;
    case dtype::boolean: type = "|b1"; break;
    case dtype::bf16: return {};
  }
  auto text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({},", type, rows);
  for (std::size_t i = 0; i < of.shape.rank(); ++i) text += fmt::format(" {},", of.shape.size(i));
  text += "), }";
  // The head's place is taken before the number of rows is known: 256 bytes hold eight dimensions.
  constexpr auto head_bytes = npy_head_bytes;
  text.resize(head_bytes - 10 - 1, ' ');
  text += '\n';
  const char magic[] = {'\x93',
                        'N',
                        'U',
                        'M',
                        'P',
                        'Y',
                        1,
                        0,
                        char((head_bytes - 10) & 0xff),
                        char((head_bytes - 10) >> 8)};
  return std::string(magic, sizeof magic) + text;
}

}  // namespace

// --- sources -------------------------------------------------------------------------------------

const std::string* csv_line::find(std::string_view column) const noexcept {
  if (header == nullptr) return nullptr;
  const auto at = std::ranges::find(*header, column);
  const auto i = static_cast<std::size_t>(at - header->begin());
  return i < cells.size() ? &cells[i] : nullptr;
}
std::size_t csv_line::size_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto& c : cells) bytes += value_bytes(c);
  return bytes;
}
std::size_t archive_sample::size_bytes() const noexcept {
  std::size_t bytes = key.size();
  for (const auto& [name, part] : parts) bytes += name.size() + part.size() + 64;
  return bytes;
}

flow<std::string> files(flow_graph& t, const std::string& pattern, const file_options& o,
                        source_location where) {
  return {t, add_file_source<path_source>(t, "files", pattern, o, where), 0};
}
flow<std::string> watch(flow_graph& t, const std::string& pattern, const file_options& o,
                        source_location where) {
  const auto every = o.every.ns > 0 ? o.every.ns : 50'000'000;
  return {t, add_file_source<watch_source>(t, "watch", pattern, o, where, every), 0};
}
flow<std::string> read_lines(flow_graph& t, const std::string& pattern, const file_options& o,
                             source_location where) {
  return {t, add_file_source<line_source>(t, "read_lines", pattern, o, where), 0};
}
flow<csv_line> read_csv(flow_graph& t, const std::string& pattern, const csv_options& csv,
                        const file_options& o, source_location where) {
  return {t, add_file_source<csv_source>(t, "read_csv", pattern, o, where, csv), 0};
}
flow<archive_sample> read_tar(flow_graph& t, const std::string& pattern, const file_options& o,
                              source_location where) {
  return {t, add_file_source<tar_source>(t, "read_tar", pattern, o, where), 0};
}
flow<tensor> read_npy_rows(flow_graph& t, const std::string& pattern, const file_options& o,
                           source_location where) {
  return {t, add_file_source<npy_source>(t, "read_npy_rows", pattern, o, where), 0};
}
flow<std::uint64_t> timer(flow_graph& t, nanoseconds_of every, source_location where) {
  if (every.ns <= 0)
    t.note_mistake(error(error_code::usage, "timer: its time is not above 0").at(where));
  stage_info info;
  info.kind = "timer";
  info.where = where;
  info.has_position = true;
  info.make = [ns = std::max<std::int64_t>(1, every.ns)] {
    return std::unique_ptr<stage>(std::make_unique<timer_source>(ns));
  };
  return {t, add_source(t, std::move(info)), 0};
}

result<file_bytes> read_file::operator()(std::string path) const {
  auto source = open_any(path);
  if (!source) return std::move(source.error());
  auto bytes = read_all(**source, bytes_max);
  if (!bytes) return std::move(bytes.error());
  return file_bytes{std::move(path), std::move(*bytes)};
}

// --- ends ----------------------------------------------------------------------------------------

// Of all that was written, one after the other.
struct file_being_made::content {
  struct freed {
    void operator()(XXH3_state_t* s) const { XXH3_freeState(s); }
  };
  std::unique_ptr<XXH3_state_t, freed> state{XXH3_createState()};
  std::uint64_t bytes = 0;
  content() {
    expects(state != nullptr && XXH3_64bits_reset(state.get()) == XXH_OK, "xxHash has memory");
  }
  std::uint64_t hash() const { return XXH3_64bits_digest(state.get()); }
};

file_being_made::file_being_made(std::string path, std::uint64_t head_bytes)
    : path_(std::move(path)), head_bytes_(head_bytes) {}

void file_being_made::was_written(std::string_view text) {
  const auto before = content_->bytes;
  content_->bytes += text.size();
  if (before < head_bytes_)
    text.remove_prefix(std::min<std::uint64_t>(text.size(), head_bytes_ - before));
  XXH3_64bits_update(content_->state.get(), text.data(), text.size());
}
file_being_made::~file_being_made() {
  if (fd_ >= 0) ::close(fd_);
}

result<void> file_being_made::can_be_made() const {
  const fs::path path(path_);
  const auto folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const auto refuse = [this](const std::string& why) {
    return error(error_code::failed, fmt::format("{}.tmp: cannot be written: {}", path_, why));
  };
  if (!path.has_filename()) return refuse("this is no name of a file");
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return refuse(std::strerror(errno));
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return refuse("there is a folder of that name");
  return {};
}

result<void> file_being_made::open() {
  if (failed_) return *failed_;
  if (fd_ >= 0) return {};
  content_ = std::make_unique<content>();
  const auto temporary = path_ + ".tmp";
  fd_ = ::open(temporary.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd_ < 0)
    failed_.emplace(error_code::failed,
                    fmt::format("{}: cannot be written: {}", temporary, std::strerror(errno)));
  if (failed_) return *failed_;
  return {};
}

result<void> file_being_made::flush() {
  if (auto ok = open(); !ok) return ok;
  for (std::size_t at = 0; at < buffer_.size();) {
    const auto n = ::write(fd_, buffer_.data() + at, buffer_.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      failed_.emplace(error_code::failed,
                      fmt::format("{}.tmp: cannot be written: {}", path_, std::strerror(errno)));
      return *failed_;
    }
    at += static_cast<std::size_t>(n);
  }
  was_written(buffer_);
  buffer_.clear();
  return {};
}

result<void> file_being_made::write(std::string_view text) {
  if (failed_) return *failed_;
  buffer_ += text;
  if (buffer_.size() < std::size_t{1} << 18) return {};
  return flush();
}

result<void> file_being_made::write_at_start(std::string_view text) {
  if (auto ok = flush(); !ok) return ok;
  if (const auto n = ::pwrite(fd_, text.data(), text.size(), 0);
      n != static_cast<ssize_t>(text.size())) {
    failed_.emplace(error_code::failed, fmt::format("{}.tmp: cannot be written: {}", path_,
                                                    n < 0 ? std::strerror(errno) : "no room"));
    return *failed_;
  }
  return {};
}

result<void> file_being_made::failed(const std::string& why) {
  failed_.emplace(error_code::failed, why);
  return *failed_;
}

// The name of a file. A folder that may not be read cannot be synced.
static result<void> sync_name(const std::string& path) {
  const auto folder = fs::path(path).parent_path();
  auto ok = make_host_disk()->sync_folder(folder.empty() ? "." : folder.string());
  if (!ok && ok.error().code() == error_code::failed) return ok;
  return {};
}

result<void> file_being_made::keep(mark& m) {
  if (failed_) return *failed_;
  if (fd_ < 0 && buffer_.empty()) return {};
  if (auto ok = flush(); !ok) return ok;
  if (::fdatasync(fd_) != 0)
    return failed(fmt::format("{}.tmp: cannot be written: {}", path_, std::strerror(errno)));
  if (m.bytes == 0)
    if (auto ok = sync_name(path_); !ok) return ok;
  m.bytes = content_->bytes;
  m.hash = content_->hash();
  return {};
}

// By what stands in it: on another machine, or of a copy, numbers of files are other ones.
result<void> file_being_made::reopen(const mark& m) {
  if (m.bytes == 0) return {};
  const auto temporary = path_ + ".tmp";
  const auto begins_so = [&](const std::string& path) {
    content_ = std::make_unique<content>();
    const host::descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    std::string piece(std::size_t{1} << 20, '\0');
    while (content_->bytes < m.bytes) {
      const auto wanted = std::min<std::uint64_t>(piece.size(), m.bytes - content_->bytes);
      const auto n = ::read(file.get(), piece.data(), static_cast<std::size_t>(wanted));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      was_written({piece.data(), static_cast<std::size_t>(n)});
    }
    return content_->hash() == m.hash;
  };
  struct stat s{};
  if (::lstat(temporary.c_str(), &s) != 0 && errno == ENOENT) {
    // It was whole, and the topology was not.
    if (!begins_so(path_))
      return failed(fmt::format("{}: the checkpoint goes on with it, and it is gone", temporary));
    if (::rename(path_.c_str(), temporary.c_str()) != 0)
      return failed(fmt::format("{}: cannot be renamed: {}", path_, std::strerror(errno)));
  } else if (!begins_so(temporary)) {
    return failed(
        fmt::format("{}: it is not the file that the checkpoint goes on with: its first "
                    "{} bytes are other ones",
                    temporary, m.bytes));
  }
  fd_ = ::open(temporary.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd_ < 0)
    return failed(fmt::format("{}: the checkpoint goes on with it, and it cannot be written: {}",
                              temporary, std::strerror(errno)));
  if (::ftruncate(fd_, static_cast<off_t>(m.bytes)) != 0 || ::lseek(fd_, 0, SEEK_END) < 0)
    return failed(fmt::format("{}: cannot be cut off: {}", temporary, std::strerror(errno)));
  return {};
}

result<void> file_being_made::finish() {
  if (auto ok = flush(); !ok) return ok;
  const auto temporary = path_ + ".tmp";
  const bool is_synced = ::fsync(fd_) == 0;
  const bool is_closed = ::close(std::exchange(fd_, -1)) == 0;
  if (!is_synced || !is_closed || ::rename(temporary.c_str(), path_.c_str()) != 0) {
    failed_.emplace(error_code::failed,
                    fmt::format("{}: cannot be written: {}", path_, std::strerror(errno)));
    return *failed_;
  }
  return sync_name(path_);
}

stage_options named_writer(flow_graph& g, const stage_options& o, const char* kind,
                           const std::string& path, const source_location& where) {
  auto named = o;
  if (named.name.empty()) named.name = fmt::format("{}({})", kind, path);
  if (o.on_error.what == error_policy::kind::restart)
    g.note_mistake(
        error(error_code::usage, named.name + ": a file is not begun anew; use skip()").at(where));
  if (!o.replicas.is_one())
    g.note_mistake(
        error(error_code::usage, named.name + ": one file has one writer; leave .replicas out")
            .at(where));
  return named;
}

std::string json_text(std::string_view s) {
  std::string text = "\"";
  const bool has_others = !is_utf8(s);
  for (const auto c : s) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      text += {'\\', c};
    else if (c == '\n')
      text += "\\n";
    else if (has_others && u >= 0x80)
      text += "\\ufffd";
    else if (u < 0x20)
      text += fmt::format("\\u{:04x}", unsigned{u});
    else
      text += c;
  }
  return text + "\"";
}

namespace {
struct npy_mark {
  file_being_made::mark file;
  std::uint8_t type = 255;  // of its tensors, a dtype; 255: none has come
  std::vector<std::int64_t> sizes;
  static constexpr auto fields =
      troupe::fields<&npy_mark::file, &npy_mark::type, &npy_mark::sizes>("file", "type", "sizes");
};
}  // namespace

void write_npy(const flow<tensor>& in, const std::string& path, const stage_options& o,
               source_location where) {
  struct npy_writer {
    std::shared_ptr<file_being_made> file;
    npy_mark state{};
    std::optional<tensor_spec> spec;
    result<void> open() { return file->can_be_made(); }
    result<void> keep() { return file->keep(state.file); }
    result<void> reopen() {
      if (state.type < dtype_count) {
        const auto sizes = shape::from(std::vector<dim>(state.sizes.begin(), state.sizes.end()));
        if (!sizes) return error(error_code::failed, "its shape is none");
        spec = tensor_spec{static_cast<dtype>(state.type), *sizes};
      }
      return file->reopen(state.file);
    }
    void set_spec(const tensor_spec& s) {
      spec = s;
      state.type = static_cast<std::uint8_t>(s.type);
      for (std::size_t i = 0; i < s.shape.rank(); ++i) state.sizes.push_back(s.shape.size(i));
    }
    result<void> operator()(const tensor& t) {
      if (!t) return error(error_code::failed, file->path() + ": an item is no tensor");
      if (!spec) {
        const auto head = npy_head(t.spec(), 0);
        if (head.empty())
          return error(error_code::usage,
                       fmt::format("{}: the format has no {}", file->path(), to_string(t.spec())));
        if (auto ok = file->write(head); !ok) return ok;
        set_spec(t.spec());
      }
      if (t.spec() != *spec)
        return error(error_code::failed,
                     fmt::format("{}: item {} is {}, and those before it are {}", file->path(),
                                 state.file.items, to_string(t.spec()), to_string(*spec)));
      ++state.file.items;
      return file->write({reinterpret_cast<const char*>(t.bytes().data()), t.bytes().size()});
    }
    result<void> finish() {
      if (!spec) {
        set_spec(tensor_spec{dtype::f32, {}});
        if (auto ok = file->write(npy_head(*spec, 0)); !ok) return ok;
      }
      if (auto ok = file->write_at_start(npy_head(*spec, state.file.items)); !ok) return ok;
      return file->finish();
    }
  };
  const auto named = named_writer(in.graph(), o, "write_npy", path, where);
  for_each(in, npy_writer{std::make_shared<file_being_made>(path, npy_head_bytes), {}, {}}, named,
           where);
}

void write_files(const flow<file_bytes>& in, const std::string& folder, const stage_options& o,
                 source_location where) {
  struct one_by_one {
    std::string folder;
    result<void> open() const {
      const auto* path = folder.empty() ? "." : folder.c_str();
      if (::access(path, W_OK | X_OK) == 0) {
        std::error_code ignored;
        if (fs::is_directory(path, ignored)) return {};
        errno = ENOTDIR;
      }
      return error(
          errno == ENOENT ? error_code::not_found : error_code::denied,
          fmt::format("{}: no files can be written there: {}", path, std::strerror(errno)));
    }
    result<void> operator()(const file_bytes& f) const {
      const auto name = fs::path(f.path).filename().string();
      if (name.empty() || name == "." || name == ".." || name.find('\0') != std::string::npos)
        return error(error_code::usage, fmt::format("'{}' is no name of a file", f.path));
      const std::span<const std::byte> bytes(f.bytes);
      return host::replace_file((fs::path(folder) / name).string(), {&bytes, 1});
    }
  };
  auto named = o;
  if (named.name.empty()) named.name = "write_files(" + folder + ")";
  for_each(in, one_by_one{folder}, named, where);
}

std::unique_ptr<stage> make_print(std::function<std::string(any_value&)> text) {
  return std::make_unique<print_stage>(std::move(text));
}

}  // namespace troupe
