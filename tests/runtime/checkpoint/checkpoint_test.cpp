#include "troupe/runtime/checkpoint/checkpoint.hpp"

#include <boost/test/unit_test.hpp>

#include <random>
#include <set>

using namespace troupe;

namespace {

checkpoint_manifest sample() {
  checkpoint_manifest m;
  m.job = "mnist \xc3\xa9\"\\\n";
  m.epoch = 3;
  m.step = 120;
  m.worker_steps = {60, 18446744073709551615U};
  m.schedule = {{"workers", "2"}, {"batch", "128"}, {"update", "sync"}};
  m.parts = {{"part-0.safetensors", 1234, std::string(32, 'a'), {"layer1/weights", "step"}},
             {"part-7.safetensors", 0, std::string(32, '0'), {"empty"}}};
  m.variables = {{"layer1/weights", {dtype::f32, {784, 128}}, {"velocity"}},
                 {"step", {dtype::i64, {}}, {}},
                 {"empty", {dtype::u8, {0, 7}}, {"m", "v_2"}}};
  m.made_unix_ns = 1'760'000'000'000'000'000;
  return m;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(const checkpoint_manifest& m) {
  auto text = to_text(m, "f");
  BOOST_REQUIRE_MESSAGE(text, (text ? "" : text.error().text()));
  return *text;
}

// The same text with one place changed, and with the hash that then is right.
std::string changed(std::string text, std::string_view from, std::string_view to) {
  const auto at = text.find(from);
  BOOST_REQUIRE_MESSAGE(at != text.npos, "no " << from);
  text.replace(at, from.size(), to);
  text.resize(text.rfind("  \"hash\""));
  return text + "  \"hash\": \"" + hash_of(bytes_of(text)) + "\"\n}\n";
}

template <class T>
void check_error(const result<T>& r, std::initializer_list<std::string_view> parts) {
  BOOST_REQUIRE(!r);
  const auto& message = r.error().message();
  BOOST_TEST(message.find('\n') == message.npos, message);
  for (const auto part : parts)
    BOOST_TEST(message.find(part) != message.npos, message << " lacks " << part);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(checkpoint)

BOOST_AUTO_TEST_CASE(CK_1_what_was_written_is_read_again) {
  for (const auto& m : {sample(), checkpoint_manifest{}}) {
    const auto back = parse_manifest(bytes_of(text_of(m)), "f");
    BOOST_REQUIRE_MESSAGE(back, (back ? "" : back.error().text()));
    BOOST_TEST((*back == m));
  }
}

BOOST_AUTO_TEST_CASE(a_manifest_looks_like_this) {
  checkpoint_manifest m;
  m.job = "mnist";
  m.epoch = 1;
  m.step = 9;
  m.worker_steps = {9};
  m.schedule = {{"workers", "1"}};
  m.parts = {{"part-0.safetensors", 96, std::string(32, 'b'), {"w"}}};
  m.variables = {{"w", {dtype::f32, {2, 4}}, {"velocity"}}};
  m.made_unix_ns = 5;
  BOOST_TEST(text_of(m) == R"({
  "format": "troupe checkpoint",
  "version": 1,
  "job": "mnist",
  "epoch": 1,
  "step": 9,
  "worker_steps": [
    9
  ],
  "schedule": {
    "workers": "1"
  },
  "parts": [
    {
      "file": "part-0.safetensors",
      "bytes": 96,
      "hash": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
      "variables": [
        "w"
      ]
    }
  ],
  "variables": [
    {
      "name": "w",
      "dtype": "f32",
      "shape": [
        2,
        4
      ],
      "slots": [
        "velocity"
      ]
    }
  ],
  "made_unix_ns": 5,
  "hash": "be74efb520b02d011db781348bfc2ad5"
}
)");
}

BOOST_AUTO_TEST_CASE(CK_2_every_changed_bit_is_found) {
  const auto whole = text_of(sample());
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    auto text = whole;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    const auto m = parse_manifest(bytes_of(text), "dir/manifest.json");
    BOOST_REQUIRE_MESSAGE(!m, "bit " << bit);
    BOOST_REQUIRE(m.error().message().starts_with("dir/manifest.json: "));
  }
}

BOOST_AUTO_TEST_CASE(CK_2_cut_and_longer_files_are_errors) {
  const auto whole = text_of(sample());
  for (std::size_t n = 0; n < whole.size(); ++n)
    BOOST_REQUIRE(!parse_manifest(bytes_of(whole).first(n), "f"));
  check_error(parse_manifest(bytes_of(whole + "\n"), "f"), {"f: ", "damaged, cut short"});
  check_error(parse_manifest(std::vector<std::byte>(manifest_bytes_max + 1), "f"),
              {"f: ", "16777217 bytes"});
}

BOOST_AUTO_TEST_CASE(CK_2_fields_of_another_type_or_size_are_named) {
  const auto whole = text_of(sample());
  const struct {
    std::string_view from, to, said;
  } cases[] = {
      {"\"epoch\": 3", "\"epoch\": -3", "epoch should be a whole number"},
      {"\"epoch\": 3", "\"epoch\": 4294967296", "up to 4294967295, and is 4294967296"},
      {"\"epoch\": 3", "\"epoch\": 3.5", "is 3.5"},
      {"\"epoch\": 3", "\"epoch\": \"3\"", "is string"},
      {"\"epoch\": 3,", "", "epoch is missing"},
      {"\"step\": 120", "\"step\": 18446744073709551616", "step should be"},
      {"\"bytes\": 1234", "\"bytes\": null", "parts[0].bytes should be"},
      {"\"schedule\": {", "\"schedule\": {\"x\": 1,", "schedule.\"x\" should be a string"},
      {"\"parts\": [", "\"parts\": [7,", "parts[0] should be an object"},
      {"\"dtype\": \"f32\"", "\"dtype\": \"f33\"", "variables[0].dtype is \"f33\""},
      {"784", "9223372036854775808", "variables[0].shape has a rank or a size"},
      {"784", "1,2,3,4,5,6,7,8", "variables[0].shape has a rank or a size"},
      {"784", "1152921504606846976", "variables[0].shape has a rank or a size"},
      {"784", "4503599627370496", "is too large"},
      {"\"name\": \"step\"", "\"name\": \"st#p\"",
       "variables[1] \"st#p\" has a name that no variable can have"},
      {"\"name\": \"step\"", "\"name\": \"__metadata__\"", "has a name that no variable can have"},
      {"\"name\": \"step\"", "\"name\": \"empty\"", "\"empty\" is there twice"},
      {"\"m\",", "\"v_2\",", "has a slot \"v_2\" twice"},
      {"\"m\",", "\"M\",", "has a slot \"M\""},
      {"\"layer1/weights\",", "", "\"layer1/weights\" is in no part"},
      {"\"layer1/weights\",", "\"layer1/weights\", \"empty\",", "parts[1].variables: \"empty\""},
      {"\"layer1/weights\",", "\"layer1/weights\", \"other\",",
       "parts[0].variables: \"other\" is unknown"},
      {"part-7.safetensors", "part-0.safetensors", "is there twice"},
      {"part-7.safetensors", "part-07.safetensors", "not a name of a part"},
      {"part-7.safetensors", "manifest.json", "not a name of a part"},
      {"aaaaaaaa", "aaaaaaaA", "parts[0].hash"},
      {"troupe checkpoint", "another", "format is \"another\""},
      {"\"version\": 1", "\"version\": {}", "version should be a whole number"},
      {"{\n", "[{\n", "not a JSON object"},
      {"\"step\": 120", "\"step\": 120, \"x\": [[[[[[[[[[]]]]]]]]]]", "nested too deeply"},
  };
  for (const auto& c : cases) {
    BOOST_TEST_CONTEXT(c.to) {
      check_error(parse_manifest(bytes_of(changed(whole, c.from, c.to)), "f"), {"f: ", c.said});
    }
  }
}

BOOST_AUTO_TEST_CASE(CK_2_a_newer_version_says_so_and_unknown_fields_of_this_one_do_no_harm) {
  const auto whole = text_of(sample());
  check_error(parse_manifest(
                  bytes_of(changed(whole, "\"version\": 1", "\"version\": 2, \"parts\": 0")), "f"),
              {"f: ", "newer Troupe", "version is 2", "up to 1"});
  const auto more =
      parse_manifest(bytes_of(changed(whole, "\"epoch\": 3", "\"epoch\": 3, \"x\": [{}]")), "f");
  BOOST_REQUIRE(more);
  BOOST_TEST((*more == sample()));
}

BOOST_AUTO_TEST_CASE(CK_2_random_texts_with_a_right_hash_never_do_harm) {
  std::mt19937 random(5);
  const auto whole = text_of(sample());
  const std::string_view pieces[] = {"{",
                                     "}",
                                     "[",
                                     "]",
                                     ",",
                                     ":",
                                     "\"",
                                     "\\",
                                     "-1",
                                     "1e999",
                                     "null",
                                     "\"part-1.safetensors\"",
                                     "99999999999999999999",
                                     "\xff",
                                     "#",
                                     "/",
                                     "velocity",
                                     "\"name\""};
  std::size_t accepted = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    auto text = whole;
    for (auto n = 1 + random() % 3; n > 0; --n) {
      const auto at = random() % (text.rfind("  \"hash\"") - 1);
      const auto length = random() % 4;
      text.replace(at, std::min<std::size_t>(length, text.rfind("  \"hash\"") - at),
                   pieces[random() % std::size(pieces)]);
    }
    const auto m = parse_manifest(bytes_of(changed(text, "", "")), "f");
    if (!m) {
      BOOST_REQUIRE(m.error().message().starts_with("f: "));
      BOOST_REQUIRE(m.error().message().find('\n') == std::string::npos);
      continue;
    }
    ++accepted;
    BOOST_REQUIRE(check_manifest(*m, "f"));
    BOOST_REQUIRE((*parse_manifest(bytes_of(text_of(*m)), "f") == *m));
  }
  BOOST_TEST(accepted > 0U);  // both sides were reached
  BOOST_TEST(accepted < 2000U);
}

BOOST_AUTO_TEST_CASE(CK_3_a_manifest_that_names_files_outside_its_folder_says_so) {
  for (const auto* name :
       {"../part-0.safetensors", "/etc/passwd", "a/part-0.safetensors", "..", ".", "", "a\\\\b"}) {
    BOOST_TEST_CONTEXT(name) {
      check_error(
          parse_manifest(bytes_of(changed(text_of(sample()), "part-7.safetensors", name)), "f"),
          {"f: ", "names files outside its folder", "parts[1].file"});
    }
  }
}

BOOST_AUTO_TEST_CASE(CK_1_what_could_not_be_read_again_is_not_written) {
  auto m = sample();
  m.job = "\xff";
  check_error(to_text(m, "f"), {"f: ", "not valid UTF-8"});
  m = sample();
  m.schedule.emplace_back("batch", "64");
  check_error(to_text(m, "f"), {"schedule: \"batch\" is there twice"});
  m = sample();
  m.variables[0].spec.shape = m.variables[0].spec.shape.with_dim(0, {784, 1});
  check_error(to_text(m, "f"), {"\"layer1/weights\" has a shape that is not exact"});
  m = sample();
  m.parts[0].variables.push_back("a\nb");
  check_error(to_text(m, "f"), {"\"a?b\" is unknown"});
  m = sample();
  m.job = std::string(manifest_bytes_max, 'x');
  check_error(to_text(m, "f"), {"expected at most"});
}

BOOST_AUTO_TEST_CASE(CK_4_jobs_have_folders_of_their_own_with_plain_names) {
  BOOST_TEST(job_folder_name("mnist") == "mnist");
  BOOST_TEST(job_folder_name("Mnist_2-a.b") == "Mnist_2-a.b");
  BOOST_TEST(job_folder_name("") == "%");
  BOOST_TEST(job_folder_name("..") == "%2E.");
  BOOST_TEST(job_folder_name("a/../b") == "a%2F..%2Fb");
  BOOST_TEST(job_folder_name("%") == "%25");
  BOOST_TEST(job_folder_name("\xc3\xa9 ") == "%C3%A9%20");
  std::set<std::string> names;
  std::size_t count = 0;
  for (const char c : {'x', '/'})
    for (std::size_t n = 0; n < 400; ++n, ++count) {
      const auto name = job_folder_name(std::string(n, c) + "y");
      BOOST_REQUIRE(name.size() <= 160U);
      BOOST_REQUIRE(name.find('/') == name.npos);
      names.insert(name);
    }
  BOOST_TEST(names.size() == count - 1);  // "y" was there twice
  // A cut name is no other job's, not even of the one that is called like it.
  const auto cut = job_folder_name(std::string(300, 'x'));
  BOOST_TEST(job_folder_name(cut) != cut);
}

BOOST_AUTO_TEST_CASE(CK_4_names_of_epochs_and_checkpoints_are_read_back) {
  BOOST_TEST(epoch_file_name(3) == "epoch-00000003");
  BOOST_TEST(checkpoint_folder_name({3, 120}) == "step-000000000120.epoch-3");
  BOOST_TEST(part_file_name(0) == "part-0.safetensors");
  for (const std::uint32_t epoch : {0U, 3U, 99'999'999U, 100'000'000U, 4294967295U})
    for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{120}, ~std::uint64_t{0}}) {
      BOOST_TEST(parse_epoch_file_name(epoch_file_name(epoch)).value() == epoch);
      BOOST_TEST((parse_checkpoint_folder_name(checkpoint_folder_name({epoch, step})) ==
                  checkpoint_id{epoch, step}));
      BOOST_TEST(is_part_file_name(part_file_name(epoch)));
    }
  for (const auto* name :
       {"", "step-", "step-000000000120", "step-120.epoch-3", "step-000000000120.epoch-",
        "step-.epoch-3", "step-000000000120.epoch-03", "step-000000000120.epoch-3.tmp",
        "step-00000000012x.epoch-3", "step-000000000120.epoch-4294967296",
        "step-+00000000120.epoch-3", ".epoch-3"})
    BOOST_TEST(!parse_checkpoint_folder_name(name), name);
  for (const auto* name : {"epoch-3", "epoch-", "epoch-000000003", "epoch-00000003 ",
                           "epoch-0000000x", "epoch-99999999999"})
    BOOST_TEST(!parse_epoch_file_name(name), name);
  for (const auto* name : {"part-.safetensors", "part-00.safetensors", "part-0.safetensors.tmp",
                           "part-0", "part--1.safetensors"})
    BOOST_TEST(!is_part_file_name(name), name);
}

BOOST_AUTO_TEST_CASE(the_epoch_decides_which_checkpoint_is_newer_then_the_step) {
  BOOST_TEST((checkpoint_id{2, 10} > checkpoint_id{1, 999}));
  BOOST_TEST((checkpoint_id{2, 11} > checkpoint_id{2, 10}));
}

BOOST_AUTO_TEST_CASE(tensors_of_slots_are_named_after_their_variable) {
  const auto name = slot_tensor_name("layer1/weights", "velocity");
  BOOST_TEST(name == "layer1/weights#velocity");
  BOOST_TEST(split_tensor_name(name).first == "layer1/weights");
  BOOST_TEST(split_tensor_name(name).second == "velocity");
  BOOST_TEST(split_tensor_name("layer1/weights").first == "layer1/weights");
  BOOST_TEST(split_tensor_name("layer1/weights").second == "");
}

BOOST_AUTO_TEST_CASE(a_hash_of_pieces_is_that_of_the_whole) {
  const std::string text(10'000, 'q');
  content_hash hash;
  hash.add(bytes_of(text).first(1234));
  hash.add({});
  hash.add(bytes_of(text).subspan(1234));
  BOOST_TEST(hash.text() == hash_of(bytes_of(text)));
  BOOST_TEST(hash_of({}) == "99aa06d3014798d86001c324468d497f");  // XXH3-128 of nothing
}

BOOST_AUTO_TEST_CASE(what_differs_between_runs_is_said_as_people_read_it) {
  const auto m = sample();
  BOOST_TEST(compare_schedule(m, m.schedule).empty());
  BOOST_TEST(compare_schedule(m, {{"update", "sync"}, {"workers", "2"}, {"batch", "128"}}).empty());
  const std::vector<std::string> expected{
      "batch: the checkpoint was made with 128, this run has 64",
      "seed: this run has 7, the checkpoint does not say",
      "update: the checkpoint was made with sync, this run does not say"};
  const auto said = compare_schedule(m, {{"workers", "2"}, {"batch", "64"}, {"seed", "7"}});
  BOOST_TEST(said == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(slots_that_do_not_fit_are_an_error_with_the_variable_and_both) {
  const std::vector<std::string> none, one{"velocity"}, two{"first_moment", "second_moment"},
      turned{"second_moment", "first_moment"};
  BOOST_TEST(bool(compare_slots("w", one, one)));
  BOOST_TEST(bool(compare_slots("w", two, turned)));
  BOOST_TEST(
      compare_slots("a/w", one, two).error().text() ==
      "the checkpoint is of another optimizer: it has velocity for variable 'a/w', but this run's optimizer needs first_moment, second_moment");
  BOOST_TEST(
      compare_slots("w", none, one).error().text().find("it has no slots for variable 'w'") !=
      std::string::npos);
  BOOST_TEST(!bool(compare_slots("w", two, one)));
}

BOOST_AUTO_TEST_CASE(a_claim_says_who_made_it_whatever_stands_in_it) {
  const checkpoint_claimant who{"c1", "host-a", 12, 1'760'000'000};
  const auto back = parse_claimant(bytes_of(to_text(who)), "f");
  BOOST_REQUIRE(back);
  BOOST_TEST((*back == who));
  BOOST_TEST(describe(who) == "client \"c1\" (pid 12 on host \"host-a\")");
  BOOST_TEST(describe({"\x1b[2J\n", "h", 1, 2}) == "client \"?[2J?\" (pid 1 on host \"h\")");
  for (const std::string text :
       {"", "{", "[]", "{\"client\": 1}", "{\"client\": \"c\", \"host\": \"h\", \"pid\": -1}"})
    check_error(parse_claimant(bytes_of(text), "f"), {"f: not a claim that can be read"});
  check_error(parse_claimant(bytes_of(std::string(5000, ' ') + to_text(who)), "f"), {"f: "});
}

BOOST_AUTO_TEST_SUITE_END()
