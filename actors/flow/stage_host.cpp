#include "troupe/actors/flow/stage_host.hpp"

#include "troupe/actors/flow/gate_actor.hpp"
#include "troupe/actors/process/load_library.hpp"

#include <fmt/format.h>

#include <utility>

namespace troupe {

std::function<caf::actor(const work_host&, job_id, node_id)> host_stages(library_list libraries) {
  return [libraries = std::move(libraries)](const work_host& host, job_id job, node_id from) {
    return spawn_node_gate({host, job, from, libraries});
  };
}

result<const stage_library*> load_stages(const std::string& file) {
  const auto opened = open_library(file);
  if (!opened) return nullptr;
  const auto entry =
      reinterpret_cast<stage_library_entry_function>(opened->find(stage_library_entry));
  if (entry == nullptr) return nullptr;
  const auto refuse = [&](const std::string& why) {
    return error(error_code::usage, fmt::format("stage library {}: {}", file, why));
  };
  const stage_library_file* found = nullptr;
  try {
    found = entry();
  } catch (...) {
    return refuse(fmt::format("{}() threw an exception", stage_library_entry));
  }
  if (found == nullptr || found->library == nullptr)
    return refuse(fmt::format("{}() returned a null pointer", stage_library_entry));
  if (found->abi != stage_library_abi())
    return refuse(
        "it was built with another compiler, other flags, or another version of Troupe than this "
        "node: build both alike");
  if (auto ok = check_library(*found->library); !ok) return refuse(ok.error().message());
  return found->library;
}

}  // namespace troupe
