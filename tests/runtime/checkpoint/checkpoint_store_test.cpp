#include "troupe/runtime/checkpoint/checkpoint_store.hpp"

#include "tests/devices/temporary_folder.hpp"
#include "tests/support/repetitions.hpp"
#include "tests/support/wait.hpp"
#include "tools/troupe-sim/sim_disk.hpp"
#include "troupe/devices/files/host_disk.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <set>

using namespace troupe;
using troupe::sim_disk;

namespace {

const std::string folder = "ckpt", job = "mnist";

using job_store = checkpoint_store;  // the suite is called like the class

job_store store_of(disk& d) { return {d, folder, job}; }

// Values that tell checkpoint, name and element.
tensor values(const std::string& name, const shape& s, checkpoint_id id) {
  auto t = tensor::make({dtype::f32, s});
  const auto key = fmt::format("{} {} {}", name, id.epoch, id.step);
  const auto seed = hash_of(std::as_bytes(std::span(key)));
  for (std::int64_t i = 0; i < t.elements(); ++i)
    t.data<float>()[i] =
        static_cast<float>(seed[static_cast<std::size_t>(i) % 32]) + static_cast<float>(i);
  return t;
}

constexpr std::uint32_t parts = 2;

std::vector<named_tensor> tensors_of(std::uint32_t part, checkpoint_id id) {
  const std::vector<std::pair<std::string, shape>> specs =
      part == 0 ? std::vector<std::pair<std::string, shape>>{{"a/weights", {3, 5}},
                                                             {"a/weights#velocity", {3, 5}},
                                                             {"b", {}}}
                : std::vector<std::pair<std::string, shape>>{
                      {"c", {40}}, {"c#velocity", {40}}, {"d", {0, 7}}};
  std::vector<named_tensor> tensors;
  for (const auto& [name, s] : specs) tensors.push_back({name, values(name, s, id)});
  return tensors;
}

checkpoint_manifest manifest_of(checkpoint_id id, std::vector<checkpoint_part> written) {
  checkpoint_manifest m;
  m.job = job;
  m.epoch = id.epoch;
  m.step = id.step;
  m.worker_steps = {id.step, id.step};
  m.schedule = {{"workers", "2"}};
  m.parts = std::move(written);
  m.variables = {{"a/weights", {dtype::f32, {3, 5}}, {"velocity"}},
                 {"b", {dtype::f32, {}}, {}},
                 {"c", {dtype::f32, {40}}, {"velocity"}},
                 {"d", {dtype::f32, {0, 7}}, {}}};
  return m;
}

result<std::vector<checkpoint_part>> write_parts(job_store store, checkpoint_id id) {
  std::vector<checkpoint_part> written;
  for (std::uint32_t i = 0; i < parts; ++i) {
    auto part = store.write_part(id, i, tensors_of(i, id));
    if (!part) return std::move(part.error());
    written.push_back(std::move(*part));
  }
  return written;
}

result<void> save(job_store store, checkpoint_id id) {
  auto written = write_parts(store, id);
  if (!written) return std::move(written.error());
  return store.write_manifest(manifest_of(id, std::move(*written)));
}

template <class T>
void require(const result<T>& r) {
  BOOST_REQUIRE_MESSAGE(r, (r ? "" : r.error().text()));
}

void check_one_line(const error& e) {
  BOOST_TEST(e.message().find('\n') == std::string::npos, e.message());
  BOOST_TEST(e.message().starts_with("cannot "), e.message());
}

template <class T>
void check_error(const result<T>& r, error_code code,
                 std::initializer_list<std::string_view> said) {
  BOOST_REQUIRE(!r);
  BOOST_TEST((r.error().code() == code), r.error().message());
  BOOST_TEST(r.error().message().find('\n') == std::string::npos);
  for (const auto part : said)
    BOOST_TEST(r.error().message().find(part) != std::string::npos, r.error().message()
                                                                        << " lacks " << part);
}

// All tensors of the checkpoint, bit for bit.
void check_loads(job_store store, const checkpoint_manifest& m) {
  const checkpoint_id id{m.epoch, m.step};
  BOOST_REQUIRE(m.parts.size() == parts);
  for (std::uint32_t i = 0; i < parts; ++i) {
    const auto loaded = store.load_part(id, m.parts[i]);
    require(loaded);
    const auto expected = tensors_of(i, id);
    BOOST_REQUIRE(loaded->size() == expected.size());
    for (std::size_t k = 0; k < expected.size(); ++k) {
      const auto &a = (*loaded)[k], &b = expected[k];
      BOOST_REQUIRE(a.name == b.name);
      BOOST_REQUIRE(a.values.spec() == b.values.spec());
      BOOST_REQUIRE(std::memcmp(a.values.bytes().data(), b.values.bytes().data(),
                                b.values.size_bytes()) == 0);
    }
  }
}

// The newest whole one, which loads.
checkpoint_id latest_id(disk& d) {
  auto store = store_of(d);
  const auto latest = store.latest_whole();
  require(latest);
  BOOST_REQUIRE_MESSAGE(
      latest->manifest,
      "nothing whole" << (latest->passed_over.empty() ? "" : ": " + latest->passed_over[0]));
  check_loads(store, *latest->manifest);
  return {latest->manifest->epoch, latest->manifest->step};
}

void check_latest(disk& d, checkpoint_id expected) {
  const auto id = latest_id(d);
  BOOST_REQUIRE_MESSAGE(id == expected, checkpoint_folder_name(id)
                                            << " instead of " << checkpoint_folder_name(expected));
}

// Operations of `what` on a disk that `before` made.
std::uint64_t operations_of(const std::function<void(sim_disk&)>& before,
                            const std::function<void(sim_disk&)>& what) {
  sim_disk d;
  before(d);
  const auto start = d.operations();
  what(d);
  return d.operations() - start;
}

constexpr checkpoint_id old_id{1, 100}, new_id{1, 200}, next_id{2, 150};
const checkpoint_claimant claimant{"c1", "host-a", 12, 1'760'000'000};

std::vector<std::string> names_in(disk& d, const std::string& path) {
  const auto names = d.list(path);
  require(names);
  return *names;
}

std::string in(checkpoint_id id, std::string_view file) {
  return fmt::format("{}/{}/{}/{}", folder, job, checkpoint_folder_name(id), file);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(checkpoint_store)

BOOST_AUTO_TEST_CASE(SD_2_the_simulated_disk_keeps_what_was_synced_and_may_lose_the_rest) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    sim_disk d;
    BOOST_REQUIRE(d.make_folder("f"));
    BOOST_REQUIRE(d.sync_folder("."));
    auto file = d.create("f/kept", disk::create_mode::exclusive);
    const auto text = std::string("12345678");
    BOOST_REQUIRE((*file)->write(std::as_bytes(std::span(text))));
    BOOST_REQUIRE((*file)->sync());
    BOOST_REQUIRE(d.sync_folder("f"));
    BOOST_REQUIRE((*file)->write(std::as_bytes(std::span(text))));
    BOOST_REQUIRE(d.create("f/new", disk::create_mode::exclusive));
    const auto lock = d.lock("f/lock");
    d.crash(seed);
    BOOST_TEST(!(*file)->write({}));  // its process is gone
    const auto kept = d.contents("f/kept");
    BOOST_REQUIRE(kept);
    BOOST_REQUIRE(kept->size() >= 8U);
    BOOST_TEST(std::memcmp(kept->data(), text.data(), 8) == 0);
    seen.insert(kept->size() == 8 ? "lost" : kept->size() == 16 ? "whole" : "cut");
    seen.insert(d.contents("f/new") ? "created" : "not created");
    if (d.contents("f/lock")) BOOST_TEST(bool(d.lock("f/lock")));
  }
  BOOST_TEST(seen == (std::set<std::string>{"lost", "whole", "cut", "created", "not created"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_checkpoint_that_was_written_is_listed_verified_and_loaded) {
  sim_disk d;
  auto store = store_of(d);
  BOOST_TEST(store.list()->checkpoints.empty());
  BOOST_TEST(!store.latest_whole()->manifest);
  const auto written = write_parts(store, old_id);
  require(written);
  BOOST_TEST((store.list()->incomplete == std::vector{old_id}));
  BOOST_TEST((*written)[0].variables == (std::vector<std::string>{"a/weights", "b"}),
             boost::test_tools::per_element());
  const auto m = manifest_of(old_id, *written);
  require(store.write_manifest(m));
  const auto all = store.list();
  require(all);
  BOOST_REQUIRE(all->checkpoints.size() == 1U);
  BOOST_TEST((all->checkpoints[0].manifest == m));
  BOOST_TEST(all->incomplete.empty());
  BOOST_TEST(store.verify(m).empty());
  check_latest(d, old_id);
  // The parts are files that everybody reads.
  const auto bytes = d.contents(in(old_id, "part-1.safetensors"));
  BOOST_REQUIRE(bytes);
  BOOST_TEST(bytes->size() == (*written)[1].bytes);
  BOOST_TEST(hash_of(*bytes) == (*written)[1].hash);
  BOOST_TEST(parse_safetensors(*bytes, "f")->size() == 3U);
}

BOOST_AUTO_TEST_CASE(the_list_has_the_newest_first_where_the_epoch_decides) {
  sim_disk d;
  for (const auto id : {checkpoint_id{2, 10}, {1, 900}, {2, 20}, {10, 5}})
    require(save(store_of(d), id));
  require(write_parts(store_of(d), {2, 15}));
  const auto all = store_of(d).list();
  require(all);
  std::vector<checkpoint_id> ids;
  for (const auto& c : all->checkpoints) ids.push_back(c.id);
  BOOST_TEST((ids == std::vector<checkpoint_id>{{10, 5}, {2, 20}, {2, 10}, {1, 900}}));
  BOOST_TEST((all->incomplete == std::vector<checkpoint_id>{{2, 15}}));
}

BOOST_AUTO_TEST_CASE(CS_1_after_a_crash_at_any_moment_the_last_whole_checkpoint_loads) {
  const auto before = [](sim_disk& d) { require(save(store_of(d), old_id)); };
  const auto write = [](sim_disk& d) -> bool {
    if (!save(store_of(d), new_id)) return false;
    [[maybe_unused]] const auto pruned = store_of(d).prune(1);
    return true;
  };
  const auto all = operations_of(before, [&](sim_disk& d) { write(d); });
  BOOST_TEST(all > 40U);
  std::size_t old = 0, fresh = 0;
  for (std::uint64_t n = 0; n <= all; ++n)
    for (std::uint64_t seed = 0; seed < repetitions(20); ++seed) {
      BOOST_TEST_CONTEXT("operation " << n << ", seed " << seed) {
        sim_disk d;
        before(d);
        d.stop_at(d.operations() + n);
        const bool was_written = write(d);
        d.crash(seed);
        const auto id = latest_id(d);
        BOOST_REQUIRE(id == new_id || (!was_written && id == old_id));
        (id == new_id ? fresh : old) += 1;
        // And the job goes on from there.
        BOOST_REQUIRE(store_of(d).claim_epoch(claimant));
        require(save(store_of(d), next_id));
        check_latest(d, next_id);
        require(store_of(d).prune(1));
        check_latest(d, next_id);
        const auto left = store_of(d).list();
        BOOST_REQUIRE(left->checkpoints.size() == 1 && left->incomplete.empty());
      }
    }
  BOOST_TEST(old > 0U);
  BOOST_TEST(fresh > 0U);
}

BOOST_AUTO_TEST_CASE(CS_1_what_a_dead_process_left_is_made_durable_before_older_ones_go) {
  const auto before = [](sim_disk& d) { require(save(store_of(d), old_id)); };
  const auto all = operations_of(before, [](sim_disk& d) { require(save(store_of(d), new_id)); });
  std::size_t removed = 0;
  for (std::uint64_t n = 0; n <= all; ++n)
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      BOOST_TEST_CONTEXT("operation " << n << ", seed " << seed) {
        sim_disk d;
        before(d);
        d.stop_at(d.operations() + n);
        const auto saved = save(store_of(d), new_id);
        d.end_process();
        const auto pruned = store_of(d).prune(1);
        require(pruned);
        removed += pruned->size();
        d.crash(seed);
        const auto id = latest_id(d);
        BOOST_REQUIRE(id == new_id || (!saved && id == old_id));
      }
    }
  // Also where the process died between the manifest and the sync of its folder.
  BOOST_TEST(removed > 4U);
}

BOOST_AUTO_TEST_CASE(CS_1_a_first_checkpoint_is_there_after_a_crash_once_it_was_written) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    sim_disk d;
    job_store deep(d, "/some/new/folder/", job);
    require(save(deep, old_id));
    d.crash(seed);
    const auto latest = deep.latest_whole();
    require(latest);
    BOOST_TEST_REQUIRE(bool(latest->manifest));
  }
}

BOOST_AUTO_TEST_CASE(CS_1_a_full_or_broken_disk_loses_nothing_at_any_operation) {
  const auto before = [](sim_disk& d) { require(save(store_of(d), old_id)); };
  const auto all = operations_of(before, [](sim_disk& d) { require(save(store_of(d), new_id)); });
  std::size_t failed = 0;
  for (const auto fault : {sim_disk::fault::no_space, sim_disk::fault::broken})
    for (const bool lasts : {false, true})
      for (std::uint64_t n = 0; n < all; ++n) {
        BOOST_TEST_CONTEXT("operation " << n << (lasts ? " and all later ones" : "")) {
          sim_disk d;
          before(d);
          d.fail(d.operations() + n, fault, lasts ? 1000 : 1);
          const auto saved = save(store_of(d), new_id);
          d.run_all();
          if (!saved) {
            ++failed;
            check_one_line(saved.error());
            BOOST_TEST(saved.error().message().find(fault == sim_disk::fault::broken
                                                        ? "Input/output error"
                                                        : "No space left") != std::string::npos);
          }
          const auto id = latest_id(d);
          BOOST_REQUIRE(id == (saved ? new_id : id));
          BOOST_REQUIRE(id == new_id || id == old_id);
          if (!lasts && d.list(folder + "/" + job)->size() == 2)
            for (const auto& name : names_in(d, in(new_id, "")))
              BOOST_TEST(!name.ends_with(".tmp"), name);
          require(save(store_of(d), next_id));
          check_latest(d, next_id);
          d.crash(1);
          check_latest(d, next_id);
        }
      }
  BOOST_TEST(failed == 4 * all);  // none of them is passed over in silence
}

BOOST_AUTO_TEST_CASE(CS_1_a_disk_without_room_says_so_and_keeps_what_it_has) {
  sim_disk d;
  require(save(store_of(d), old_id));
  const auto used = d.used_bytes();
  for (std::uint64_t room = 0; room < used; room += 37) {
    d.set_capacity(used + room);
    const auto saved = save(store_of(d), new_id);
    BOOST_REQUIRE_MESSAGE(!saved, room);
    check_error(saved, error_code::failed, {"No space left on device", ".tmp"});
    check_latest(d, old_id);
    for (const auto& name : names_in(d, in(new_id, ""))) require(d.remove(in(new_id, name)));
    BOOST_REQUIRE(d.used_bytes() == used);  // nothing is left lying about
  }
  d.set_capacity(3 * used);
  require(save(store_of(d), new_id));
  check_latest(d, new_id);
}

BOOST_AUTO_TEST_CASE(every_changed_bit_is_found_and_the_one_before_is_taken) {
  sim_disk d;
  require(save(store_of(d), old_id));
  require(save(store_of(d), new_id));
  auto store = store_of(d);
  const auto m = *store.list()->checkpoints[0].manifest;
  for (const std::string file : {"part-0.safetensors", "part-1.safetensors", "manifest.json"}) {
    const auto path = in(new_id, file);
    const auto bits = d.contents(path)->size() * 8;
    for (std::size_t bit = 0; bit < bits; bit += 7) {
      BOOST_TEST_CONTEXT(file << ", bit " << bit) {
        d.flip(path, bit);
        const auto latest = store.latest_whole();
        require(latest);
        BOOST_REQUIRE(latest->manifest);
        BOOST_REQUIRE(latest->manifest->step == old_id.step);
        BOOST_REQUIRE(latest->passed_over.size() == 1U);
        BOOST_REQUIRE(latest->passed_over[0].starts_with(path));
        if (file != "manifest.json") {
          const auto problems = store.verify(m);
          BOOST_REQUIRE(problems.size() == 1U);
          BOOST_REQUIRE(problems[0].find("damaged") != std::string::npos);
          BOOST_REQUIRE(store.verify(m, checkpoint_check::sizes).empty());
          BOOST_REQUIRE(!store.load_part(new_id, m.parts[file == "part-1.safetensors"]));  // CS-5
        }
        d.flip(path, bit);
      }
    }
  }
  check_latest(d, new_id);
}

BOOST_AUTO_TEST_CASE(parts_that_are_cut_short_missing_or_of_others_are_found) {
  sim_disk d;
  require(save(store_of(d), old_id));
  require(save(store_of(d), new_id));
  auto store = store_of(d);
  const auto m = *store.list()->checkpoints[0].manifest;
  const auto path = in(new_id, "part-0.safetensors");
  const auto whole = *d.contents(path);
  d.put(path, std::span(whole).first(whole.size() - 1));
  for (const auto check : {checkpoint_check::sizes, checkpoint_check::contents})
    BOOST_TEST(
        store.verify(m, check) == std::vector{fmt::format("{}: has {} bytes, and should have {}",
                                                          path, whole.size() - 1, whole.size())},
        boost::test_tools::per_element());
  d.put(path, *d.contents(in(old_id, "part-0.safetensors")));  // as long, and not this
  BOOST_TEST(store.verify(m).size() == 1U);
  require(d.remove(path));
  BOOST_TEST(store.verify(m, checkpoint_check::sizes).size() == 1U);
  d.put(in(new_id, "part-1.safetensors"), {});
  BOOST_TEST(store.verify(m).size() == 2U);  // all problems
  const auto latest = store.latest_whole();
  BOOST_TEST(latest->passed_over[0].ends_with("(and 1 more problems)"), latest->passed_over[0]);
  check_latest(d, old_id);
}

BOOST_AUTO_TEST_CASE(tensors_that_do_not_fit_the_manifest_are_found) {
  sim_disk d;
  auto store = store_of(d);
  const auto written = write_parts(store, old_id);
  require(written);
  const auto m = manifest_of(old_id, *written);
  const auto said = [&](const checkpoint_manifest& changed, std::string_view what) {
    const auto problems = store.verify(changed);
    BOOST_REQUIRE(problems.size() == 1U);
    BOOST_TEST(problems[0].find(what) != std::string::npos, problems[0]);
  };
  BOOST_TEST(store.verify(m).empty());
  auto changed = m;
  changed.variables[0].slots.clear();
  said(changed, "holds a tensor \"a/weights#velocity\" that the manifest does not name");
  changed = m;
  changed.variables[1].slots = {"velocity"};
  said(changed, "lacks the tensor \"b#velocity\"");
  changed = m;
  changed.variables[1].spec.shape = {1};
  said(changed, "tensor \"b\" is f32[], the manifest says f32[1]");
  changed = m;
  changed.variables[3].spec.type = dtype::i32;
  said(changed, "tensor \"d\" is f32[0, 7], the manifest says i32[0, 7]");
  changed = m;
  changed.variables.erase(changed.variables.begin() + 1);
  changed.parts[0].variables.pop_back();
  said(changed, "holds a tensor \"b\"");
  changed = m;
  changed.variables[1].name = changed.parts[0].variables[1] = "e";
  BOOST_TEST(store.verify(changed).size() == 2U);
  changed = m;
  changed.parts[0].file = "../x";
  said(changed, "names files outside its folder");
  changed = m;
  changed.parts.pop_back();
  said(changed, "is in no part");
  auto part = m.parts[0];
  part.variables.push_back("c");
  check_error(store.load_part(old_id, part), error_code::usage,
              {"part-0.safetensors", "lacks the tensor \"c\""});
}

BOOST_AUTO_TEST_CASE(CS_6_parts_are_files_of_the_checkpoint_only) {
  sim_disk d;
  require(save(store_of(d), old_id));
  d.put(folder + "/secret", std::vector<std::byte>(8));
  const auto count = d.operations();
  for (const auto* name : {"../../secret", "/ckpt/secret", "", ".", "manifest.json"})
    check_error(store_of(d).load_part(old_id, {name, 8, std::string(32, '0'), {}}),
                error_code::usage, {"no part of a checkpoint"});
  BOOST_TEST(d.operations() == count);  // it was not even looked at
}

BOOST_AUTO_TEST_CASE(a_copied_or_renamed_checkpoint_is_told_apart) {
  sim_disk d;
  require(save(store_of(d), old_id));
  require(d.make_folder(in(new_id, "")));
  for (const auto& name : names_in(d, in(old_id, "")))
    d.put(in(new_id, name), *d.contents(in(old_id, name)));
  const auto latest = store_of(d).latest_whole();
  BOOST_REQUIRE(latest->passed_over.size() == 1U);
  BOOST_TEST(latest->passed_over[0].find("renamed or copied") != std::string::npos);
  check_latest(d, old_id);
}

BOOST_AUTO_TEST_CASE(CS_2_what_is_visible_is_never_written_again) {
  sim_disk d;
  require(save(store_of(d), old_id));
  auto store = store_of(d);
  const auto m = *store.list()->checkpoints[0].manifest;
  const auto again = store.write_part(old_id, 0, tensors_of(0, new_id));
  check_error(again, error_code::denied, {"manifest.json already exists"});
  check_error(store.write_manifest(m), error_code::denied, {"manifest.json already exists"});
  check_latest(d, old_id);
}

BOOST_AUTO_TEST_CASE(CS_2_a_manifest_is_written_only_where_all_its_parts_are) {
  sim_disk d;
  auto store = store_of(d);
  const auto written = write_parts(store, old_id);
  require(written);
  auto m = manifest_of(old_id, *written);
  m.parts[1].bytes += 1;
  check_error(store.write_manifest(m), error_code::usage,
              {"cannot write", "manifest.json", "part-1.safetensors", "should have"});
  m.parts[1].bytes -= 1;
  require(d.remove(in(old_id, "part-1.safetensors")));
  check_error(store.write_manifest(m), error_code::not_found,
              {"cannot write", "manifest.json", "part-1.safetensors"});
  m = manifest_of(old_id, *written);
  m.job = "another";
  check_error(store.write_manifest(m), error_code::usage, {"is of job another, not of mnist"});
  BOOST_TEST(store.list()->checkpoints.empty());
}

BOOST_AUTO_TEST_CASE(tensors_with_names_that_could_not_be_read_back_are_not_written) {
  sim_disk d;
  auto store = store_of(d);
  const auto write = [&](std::vector<std::string> names) {
    std::vector<named_tensor> tensors;
    for (const auto& name : names) tensors.push_back({name, values(name, {2}, old_id)});
    return store.write_part(old_id, 0, tensors);
  };
  for (const auto* name : {"", "#velocity", "a#", "a#b#c", "a b", "__metadata__", "a\n", "\xff"})
    check_error(write({name}), error_code::usage, {"is no name of a tensor"});
  check_error(write({"a", "a"}), error_code::usage, {"two tensors are named \"a\""});
  BOOST_TEST(d.operations() == 0U);
  require(write({}));
}

BOOST_AUTO_TEST_CASE(CS_3_prune_keeps_the_newest_whole_ones_and_what_is_in_the_making) {
  sim_disk d;
  auto store = store_of(d);
  for (const auto id : {checkpoint_id{1, 10}, {1, 20}, {1, 30}, {2, 15}, {2, 25}, {2, 35}})
    require(save(store, id));
  for (const auto id : {checkpoint_id{1, 40}, {2, 20}, {3, 5}}) require(write_parts(store, id));
  d.flip(in({2, 35}, "manifest.json"), 77);
  d.flip(in({2, 15}, "part-0.safetensors"), 1000);
  const auto removed = store.prune(2);
  require(removed);
  // Whole are 2/25 and 1/30. The damaged one between them stays: it may be a reader's bad luck.
  BOOST_TEST((*removed == std::vector<checkpoint_id>{{1, 10}, {1, 20}, {1, 40}, {2, 20}}));
  const auto left = store.list();
  std::vector<checkpoint_id> ids;
  for (const auto& c : left->checkpoints) ids.push_back(c.id);
  BOOST_TEST((ids == std::vector<checkpoint_id>{{2, 35}, {2, 25}, {2, 15}, {1, 30}}));
  BOOST_TEST((left->incomplete == std::vector<checkpoint_id>{{3, 5}}));
  check_latest(d, {2, 25});
  BOOST_TEST(store.prune(2)->empty());
  check_error(store.prune(0), error_code::usage, {"at least one"});
}

BOOST_AUTO_TEST_CASE(CS_7_a_run_does_not_go_back_to_what_it_passed_over) {
  sim_disk d;
  auto store = store_of(d);
  for (const auto id : {checkpoint_id{1, 10}, {1, 20}, {1, 30}, {1, 40}}) require(save(store, id));
  const checkpoint_lineage run{2, 20};  // 30 and 40 could not be read when it began, and can be now
  const auto newest = [&] {
    const auto latest = store.latest_whole(run);
    require(latest);
    BOOST_TEST(latest->passed_over.empty());
    return checkpoint_id{latest->manifest->epoch, latest->manifest->step};
  };
  BOOST_TEST((newest() == checkpoint_id{1, 20}));
  require(save(store, {2, 25}));
  BOOST_TEST((newest() == checkpoint_id{2, 25}));
  // The second is 20.
  BOOST_TEST(
      (*store.prune(2, checkpoint_check::sizes, run) == std::vector<checkpoint_id>{{1, 10}}));
  BOOST_TEST(bool(store.latest_whole({2, 0})->manifest));
  BOOST_TEST((*store.prune(1, checkpoint_check::sizes, run) ==
              std::vector<checkpoint_id>{{1, 20}, {1, 30}, {1, 40}}));
  BOOST_TEST(!store.latest_whole({3, 0})->manifest);
}

BOOST_AUTO_TEST_CASE(CS_3_prune_removes_nothing_where_nothing_is_whole) {
  sim_disk d;
  auto store = store_of(d);
  require(save(store, old_id));
  require(write_parts(store, {1, 50}));
  d.flip(in(old_id, "part-0.safetensors"), 9);
  BOOST_TEST(store.prune(1)->empty());
  BOOST_TEST(store.prune(1, checkpoint_check::sizes)->size() == 1U);  // which takes it for whole
}

BOOST_AUTO_TEST_CASE(CS_3_prune_touches_no_name_that_it_does_not_know) {
  sim_disk d;
  auto store = store_of(d);
  require(store.claim_epoch(claimant));
  require(store.lock_job());
  for (const auto id : {old_id, new_id}) require(save(store, id));
  const std::vector<std::byte> text(5);
  for (const auto* name : {"notes.txt", "step-1.epoch-1", "part-0.safetensors"})
    d.put(folder + "/" + job + "/" + name, text);
  d.put(in(old_id, "notes.txt"), text);
  d.put(in(old_id, "part-9.safetensors.tmp"), text);
  BOOST_TEST((*store.prune(1) == std::vector{old_id}));
  BOOST_TEST(names_in(d, in(old_id, "")) == std::vector<std::string>{"notes.txt"},
             boost::test_tools::per_element());
  BOOST_TEST(names_in(d, folder + "/" + job) ==
                 (std::vector<std::string>{"epoch-00000001", "lock", "notes.txt",
                                           "part-0.safetensors", "step-000000000100.epoch-1",
                                           "step-000000000200.epoch-1", "step-1.epoch-1"}),
             boost::test_tools::per_element());
  BOOST_TEST(store.prune(1)->empty());
}

BOOST_AUTO_TEST_CASE(CS_3_a_crash_or_an_error_while_pruning_leaves_no_half_checkpoint_visible) {
  const auto before = [](sim_disk& d) {
    for (const auto id : {checkpoint_id{1, 50}, old_id, new_id}) require(save(store_of(d), id));
  };
  const auto all = operations_of(before, [](sim_disk& d) { require(store_of(d).prune(1)); });
  for (std::uint64_t n = 0; n <= all; ++n)
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      BOOST_TEST_CONTEXT("operation " << n << ", seed " << seed) {
        sim_disk d;
        before(d);
        if (seed % 2 == 0)
          d.stop_at(d.operations() + n);
        else
          d.fail(d.operations() + n, sim_disk::fault::broken);
        const auto pruned = store_of(d).prune(1);
        if (!pruned) check_one_line(pruned.error());
        d.run_all();
        d.crash(seed / 2);
        auto store = store_of(d);
        const auto left = store.list();
        require(left);
        for (const auto& c : left->checkpoints)
          BOOST_REQUIRE(c.manifest && store.verify(*c.manifest).empty());
        if (n == all) BOOST_REQUIRE(left->checkpoints.size() == 1 && left->incomplete.empty());
        check_latest(d, new_id);
        require(store.prune(1));
        BOOST_REQUIRE(store.list()->checkpoints.size() == 1 && store.list()->incomplete.empty());
      }
    }
}

BOOST_AUTO_TEST_CASE(what_will_not_be_finished_gives_its_room_back) {
  sim_disk d;
  auto store = store_of(d);
  const checkpoint_id whole{1, 10}, old_one{1, 12}, given_up{2, 20}, open{2, 30}, later{3, 40};
  require(save(store, whole));
  for (const auto id : {old_one, given_up, open, later}) require(write_parts(store, id));
  require(store.remove_unfinished(given_up));
  const auto left = store.list();
  require(left);
  BOOST_TEST_REQUIRE(left->checkpoints.size() == 1U);
  BOOST_TEST((left->checkpoints[0].id == whole));
  BOOST_TEST((left->incomplete == std::vector{later, open}));
  require(store.remove_unfinished(whole));  // it is finished
  BOOST_TEST(store.list()->checkpoints.size() == 1U);
}

BOOST_AUTO_TEST_CASE(CS_4_epochs_are_claimed_one_after_the_other) {
  sim_disk d;
  auto store = store_of(d);
  BOOST_TEST(*store.newest_epoch() == 0U);
  BOOST_TEST(*store.claim_epoch(claimant) == 1U);
  BOOST_TEST(*store.claim_epoch(claimant) == 2U);
  BOOST_TEST(*store.newest_epoch() == 2U);
  require(write_parts(store, {7, 1}));  // a claim may be gone where its checkpoints are not
  BOOST_TEST(*store.claim_epoch(claimant) == 8U);
  const auto text = d.contents(folder + "/" + job + "/epoch-00000008");
  BOOST_REQUIRE(text);
  BOOST_TEST((*parse_claimant(*text, "f") == claimant));
  d.put(folder + "/" + job + "/epoch-4294967295", {});
  check_error(store.claim_epoch(claimant), error_code::usage, {"no epoch after 4294967295"});
}

BOOST_AUTO_TEST_CASE(CS_4_of_two_claimants_one_gets_the_epoch_and_the_other_learns_who) {
  const auto first = [](sim_disk& d) { require(store_of(d).claim_epoch(claimant)); };
  const auto all = operations_of([](sim_disk&) {}, first);
  std::size_t denied = 0;
  for (std::uint64_t n = 0; n < all; ++n) {
    sim_disk d;
    std::optional<result<std::uint32_t>> other;
    d.before_each([&](std::uint64_t operation) {
      if (operation == n && !other) other.emplace(store_of(d).claim_epoch({"c2", "host-b", 34, 5}));
    });
    const auto mine = store_of(d).claim_epoch(claimant);
    BOOST_REQUIRE(other.has_value());
    require(*other);
    if (mine) {
      BOOST_TEST(*mine != **other);
      continue;
    }
    ++denied;
    check_error(mine, error_code::denied,
                {"epoch 1 of job mnist was claimed by client \"c2\" (pid 34 on host \"host-b\")"});
    BOOST_TEST(*store_of(d).claim_epoch(claimant) == 2U);
  }
  BOOST_TEST(denied > 0U);
}

BOOST_AUTO_TEST_CASE(CS_4_a_claim_without_a_text_is_a_claim) {
  sim_disk d;
  auto store = store_of(d);
  require(store.claim_epoch(claimant));
  const auto path = folder + "/" + job + "/epoch-00000002";
  d.before_each([&](std::uint64_t) {
    if (!d.contents(path)) d.put(path, {});  // somebody died, or has not written yet
  });
  BOOST_TEST(*store.newest_epoch() == 2U);
  BOOST_TEST(*store.claim_epoch(claimant) == 3U);
}

BOOST_AUTO_TEST_CASE(
    CS_4_a_claim_that_was_made_is_there_after_a_crash_and_one_that_failed_is_not_used) {
  const auto before = [](sim_disk& d) { require(store_of(d).claim_epoch(claimant)); };
  const auto all = operations_of(before, before);
  for (std::uint64_t n = 0; n <= all; ++n)
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      BOOST_TEST_CONTEXT("operation " << n << ", seed " << seed) {
        sim_disk d;
        before(d);
        if (seed % 2 == 0)
          d.stop_at(d.operations() + n);
        else
          d.fail(d.operations() + n, sim_disk::fault::no_space);
        const auto second = store_of(d).claim_epoch(claimant);
        BOOST_REQUIRE(second ? *second == 2 : n < all);
        if (!second) check_one_line(second.error());
        d.run_all();
        // It cleaned up.
        if (!second && seed % 2 != 0) BOOST_REQUIRE(*store_of(d).newest_epoch() == 1);
        d.crash(seed / 2);
        const auto text = d.contents(folder + "/" + job + "/epoch-00000002");
        if (second) BOOST_REQUIRE((text && parse_claimant(*text, "f")));
        const auto third = store_of(d).claim_epoch(claimant);
        require(third);
        BOOST_REQUIRE(*third > (second ? *second : 1));
      }
    }
}

BOOST_AUTO_TEST_CASE(a_job_has_one_owner_and_the_others_learn_who) {
  sim_disk d;
  auto store = store_of(d);
  auto lock = store.lock_job();
  require(lock);
  check_error(store.lock_job(), error_code::denied, {"job mnist is in use", "ckpt/mnist/lock"});
  require(store.claim_epoch(claimant));
  check_error(store.lock_job(), error_code::denied,
              {"epoch 1 of job mnist was claimed by client \"c1\""});
  BOOST_TEST(bool(job_store(d, folder, "other").lock_job()));
  lock->reset();
  require(store.lock_job());
}

BOOST_AUTO_TEST_CASE(jobs_do_not_see_each_other) {
  sim_disk d;
  require(save(store_of(d), old_id));
  job_store other(d, folder, "../mnist");
  BOOST_TEST(other.folder() == "ckpt/%2E.%2Fmnist");
  BOOST_TEST(other.list()->checkpoints.empty());
  BOOST_TEST(*other.claim_epoch(claimant) == 1U);
}

BOOST_AUTO_TEST_CASE(files_in_place_of_folders_are_problems_and_no_more) {
  sim_disk d;
  require(save(store_of(d), old_id));
  d.put(folder + "/" + job + "/" + checkpoint_folder_name(new_id), {});
  require(d.make_folder(in({1, 300}, "manifest.json")));
  const auto latest = store_of(d).latest_whole();
  require(latest);
  BOOST_TEST(latest->manifest->step == old_id.step);
  BOOST_TEST(latest->passed_over.size() == 2U);
  require(store_of(d).prune(1));
  BOOST_TEST(!store_of(d).write_part(new_id, 0, tensors_of(0, new_id)));
}

BOOST_AUTO_TEST_CASE(a_real_disk_keeps_checkpoints_too) {
  const test::temporary_folder real;
  const auto d = make_host_disk();
  job_store store(*d, real.file("made/here"), job);
  BOOST_TEST(*store.claim_epoch(claimant) == 1U);
  for (const auto id : {old_id, new_id}) require(save(store, id));
  const auto latest = store.latest_whole();
  require(latest);
  BOOST_REQUIRE(latest->manifest);
  BOOST_TEST(latest->manifest->step == new_id.step);
  check_loads(store, *latest->manifest);
  BOOST_TEST(store.prune(1)->size() == 1U);
  BOOST_TEST(names_in(*d, store.folder()) ==
                 (std::vector<std::string>{"epoch-00000001", "step-000000000200.epoch-1"}),
             boost::test_tools::per_element());
  BOOST_TEST(
      names_in(*d, store.folder_of(new_id)) ==
          (std::vector<std::string>{"manifest.json", "part-0.safetensors", "part-1.safetensors"}),
      boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_folder_that_may_not_be_written_is_an_error_of_one_line) {
  if (::geteuid() == 0) {
    BOOST_TEST_MESSAGE("skipped: root may write everywhere");
    return;
  }
  const test::temporary_folder real;
  const auto d = make_host_disk();
  job_store store(*d, real.path(), job);
  require(save(store, old_id));
  BOOST_REQUIRE(::chmod(store.folder().c_str(), 0555) == 0);
  check_error(save(store, new_id), error_code::usage, {"Permission denied", store.folder()});
  check_error(store.claim_epoch(claimant), error_code::usage,
              {"Permission denied", "epoch-00000002"});
  BOOST_TEST(bool(store.latest_whole()->manifest));
  BOOST_REQUIRE(::chmod(store.folder().c_str(), 0755) == 0);
}

BOOST_AUTO_TEST_CASE(a_job_of_a_living_process_is_locked_and_free_once_it_is_killed) {
  const test::temporary_folder real;
  const auto d = make_host_disk();
  job_store store(*d, real.path(), job);
  int ready[2];
  BOOST_REQUIRE(::pipe(ready) == 0);
  const auto child = ::fork();
  if (child == 0) {
    const auto lock = store.lock_job();
    const char answer = lock && store.claim_epoch({"child", "here", 77, 1}) ? 'y' : 'n';
    if (::write(ready[1], &answer, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char answer = 0;
  test::wait_readable(ready[0], "the child has asked for the lock");
  BOOST_REQUIRE(::read(ready[0], &answer, 1) == 1);
  BOOST_TEST(answer == 'y');
  check_error(store.lock_job(), error_code::denied,
              {"job mnist is in use", "client \"child\" (pid 77"});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  BOOST_TEST(bool(store.lock_job()));
  ::close(ready[0]), ::close(ready[1]);
}

BOOST_AUTO_TEST_SUITE_END()
