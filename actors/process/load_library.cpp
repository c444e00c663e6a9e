#include "troupe/actors/process/load_library.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>

namespace troupe {

namespace {

// Why, in one line, without the name of the file, which stands in front of it anyway.
std::string reason_of_loader(const std::string& path) {
  const char* said = ::dlerror();
  std::string text = said != nullptr ? said : "no reason given";
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.starts_with(path + ": ")) text.erase(0, path.size() + 2);
  return text;
}

// Whether every byte that the loader will map is in the file: of a library that was cut off, by a
// copy that is not done, it would only notice by a signal.
bool is_whole(const std::string& file, std::uint64_t size) {
  std::ifstream in(file, std::ios::binary);
  Elf64_Ehdr header{};
  // The loader says it better.
  if (!in.read(reinterpret_cast<char*>(&header), sizeof header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return true;
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_phentsize != sizeof(Elf64_Phdr))
    return true;
  const auto fits = [&](std::uint64_t at, std::uint64_t bytes) {
    return at <= size && bytes <= size - at;
  };
  if (!fits(header.e_phoff, std::uint64_t{header.e_phnum} * sizeof(Elf64_Phdr))) return false;
  in.seekg(static_cast<std::streamoff>(header.e_phoff));
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    if (!in.read(reinterpret_cast<char*>(&segment), sizeof segment)) return false;
    if (segment.p_type == PT_LOAD && !fits(segment.p_offset, segment.p_filesz)) return false;
  }
  return true;
}

}  // namespace

result<opened_library> open_library(const std::string& file) {
  struct stat about{};
  if (::stat(file.c_str(), &about) != 0)
    return error(error_code::not_found, fmt::format("op library {}: there is no such file", file));
  if (!S_ISREG(about.st_mode))
    return error(error_code::usage, fmt::format("op library {}: it is not a regular file", file));
  if (!is_whole(file, static_cast<std::uint64_t>(about.st_size)))
    return error(
        error_code::usage,
        fmt::format("op library {}: it cannot be loaded: a part of the file is missing", file));
  // A path, or the loader would look elsewhere. Its names stay its own, and what it lacks shows
  // now, not in the middle of a step.
  const auto path = file.find('/') == std::string::npos ? "./" + file : file;
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return error(error_code::usage, fmt::format("op library {}: it cannot be loaded: {}", file,
                                                reason_of_loader(path)));
  return opened_library{handle};
}

void* opened_library::find(const char* symbol) const { return ::dlsym(handle, symbol); }

result<void> load_ops(op_table& ops, kernel_table& kernels, const std::string& file) {
  const auto opened = open_library(file);
  if (!opened) return opened.error();
  const auto refuse = [&](std::string_view why) {
    ::dlclose(opened->handle);  // nothing of it is in use
    return error(error_code::usage, fmt::format("op library {}: {}", file, why));
  };
  const auto entry = reinterpret_cast<op_library_entry_function>(opened->find(op_library_entry));
  if (entry == nullptr && opened->find("troupe_stage_library") != nullptr) return {};
  if (entry == nullptr)
    return refuse(
        fmt::format("it has no {}(): it is not a library of ops, or TROUPE_OP_LIBRARY is missing "
                    "(of stages: TROUPE_STAGE_LIBRARY)",
                    op_library_entry));
  const op_library* library = nullptr;
  try {
    library = entry();
  } catch (...) {
    return refuse(fmt::format("{}() threw an exception", op_library_entry));
  }
  if (library == nullptr)
    return refuse(fmt::format("{}() returned a null pointer", op_library_entry));
  return add_ops(ops, kernels, *library, file);
}

}  // namespace troupe
