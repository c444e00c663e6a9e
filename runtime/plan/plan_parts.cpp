#include "troupe/runtime/plan/plan_parts.hpp"

#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>

#include <array>
#include <cstring>

namespace troupe::plan_parts {

// --- writing

void put(wire::TensorSpec::Builder to, const tensor_spec& s) {
  to.setDtype(static_cast<std::uint8_t>(s.type));
  auto dims = to.initDims(static_cast<unsigned>(s.shape.rank()));
  for (unsigned i = 0; i < s.shape.rank(); ++i) {
    dims[i].setSize(s.shape.size(i));
    dims[i].setSymbol(s.shape[i].symbol);
  }
}

void put(wire::Attribute::Builder to, const attributes::entry& e) {
  to.setName(e.first);
  if (const auto* integer = std::get_if<std::int64_t>(&e.second)) to.setInteger(*integer);
  if (const auto* real = std::get_if<double>(&e.second)) to.setReal(*real);
  if (const auto* text = std::get_if<std::string>(&e.second)) to.setText(*text);
  if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&e.second)) {
    auto list = to.initIntegers(list_size(*integers));
    for (unsigned i = 0; i < list.size(); ++i) list.set(i, (*integers)[i]);
  }
  if (const auto* data = std::get_if<shared_bytes>(&e.second)) {
    const auto bytes = data->view();
    auto to_bytes = to.initData(static_cast<unsigned>(bytes.size()));
    if (!bytes.empty()) std::memcpy(to_bytes.begin(), bytes.data(), bytes.size());
  }
}

void put(wire::OptimizerNumbers::Builder to, const optimizer_spec& o) {
  to.setNesterov(o.nesterov);
  to.setWeightDecay(o.weight_decay);
  to.setBeta1(o.beta1);
  to.setBeta2(o.beta2);
  to.setAlpha(o.alpha);
  to.setCentered(o.centered);
  to.setEpsilon(o.epsilon);
  to.setLearningRateDecay(o.learning_rate_decay);
  to.setInitialAccumulator(o.initial_accumulator);
  to.setClipValue(o.clip_value);
  to.setClipNorm(o.clip_norm);
}

void put(wire::Schedule::Builder to, const learning_rate_schedule& s) {
  to.setKind(static_cast<std::uint8_t>(s.type));
  to.setWarmup(s.warmup);
  to.setEvery(s.every);
  to.setDecay(s.decay);
  to.setSteps(s.steps);
  to.setMinimum(s.minimum);
  to.setTimescale(s.timescale);
}

void put(wire::Library::Builder to, const planned_library& l) {
  to.setName(l.library.name);
  to.setVersion(l.library.version);
  to.setAbi(l.library.abi);
  auto ops = to.initOps(list_size(l.ops));
  for (unsigned i = 0; i < ops.size(); ++i) ops.set(i, l.ops[i]);
}

std::vector<std::byte> to_bytes(capnp::MessageBuilder& message) {
  const auto words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  std::vector<std::byte> out(bytes.size());
  if (!out.empty()) std::memcpy(out.data(), bytes.begin(), out.size());
  return out;
}

// --- reading

void part_reader::spend(std::uint64_t elements, std::uint64_t words_each) {
  if (elements > words_left_ / words_each)
    throw misread{"a list claims more elements than the bytes can hold"};
  words_left_ -= elements * words_each;
}

void part_reader::limit(const char* what, std::uint64_t n, std::uint64_t most,
                        std::uint64_t words_each) {
  if (n > most) throw misread{fmt::format("{} {}, at most {} are allowed", n, what, most)};
  spend(n, words_each);
}

std::string part_reader::text(capnp::Text::Reader t) {
  // Many pointers may show the same bytes.
  spend(t.size() / sizeof(capnp::word), 1);
  std::string out{t.begin(), t.size()};
  // Nothing but a forger puts one there, and what is written of it would be another text.
  if (out.find('\0') != std::string::npos) throw misread{"a string has a 0 byte in it"};
  return out;
}

tensor_spec part_reader::spec(wire::TensorSpec::Reader s) {
  const auto type = s.getDtype();
  const auto list = s.getDims();
  if (type >= dtype_count || list.size() > shape::rank_max)
    throw misread{fmt::format("no tensor has dtype {} and rank {}", type, list.size())};
  std::array<dim, shape::rank_max> dims;
  std::size_t rank = 0;
  for (const auto d : list) dims[rank++] = {d.getSize(), d.getSymbol()};
  const auto sizes = shape::from(std::span(dims.data(), rank));
  if (!sizes) throw misread{"a size of a tensor is negative, or it has too many elements"};
  return {static_cast<dtype>(type), *sizes};
}

attributes::entry part_reader::attribute(wire::Attribute::Reader a) {
  auto name = text(a.getName());
  switch (a.which()) {
    case wire::Attribute::INTEGER: return {std::move(name), a.getInteger()};
    case wire::Attribute::REAL: return {std::move(name), a.getReal()};
    case wire::Attribute::TEXT: return {std::move(name), text(a.getText())};
    case wire::Attribute::INTEGERS: {
      const auto list = a.getIntegers();
      spend(list.size(), 1);
      std::vector<std::int64_t> all;
      all.reserve(list.size());
      for (const auto n : list) all.push_back(n);
      return {std::move(name), std::move(all)};
    }
    case wire::Attribute::DATA: {
      const auto bytes = std::as_bytes(std::span(a.getData().begin(), a.getData().size()));
      spend(bytes.size() / sizeof(capnp::word), 1);  // many pointers may show the same bytes
      return {std::move(name), shared_bytes({bytes.begin(), bytes.end()})};
    }
  }
  throw misread{fmt::format("attribute '{}' is of an unknown type", name)};
}

attributes part_reader::all_attributes(capnp::List<wire::Attribute>::Reader list) {
  limit("attributes of an op", list.size(), attributes_max, small_words);
  attributes all;
  for (const auto a : list) {
    auto [name, value] = attribute(a);
    all.set(std::move(name), std::move(value));
  }
  return all;
}

planned_library part_reader::library(wire::Library::Reader r) {
  planned_library l{{text(r.getName()), text(r.getVersion()), r.getAbi()}, {}};
  const auto ops = r.getOps();
  limit("ops of a library", ops.size(), plan_library_ops_max, small_words);
  for (const auto op : ops) l.ops.push_back(text(op));
  return l;
}

update_kind part_reader::update(std::uint8_t n) {
  if (n > 1) throw misread{fmt::format("there is no update kind {}", n)};
  return static_cast<update_kind>(n);
}

optimizer_spec part_reader::optimizer(std::string type, double learning_rate, double momentum,
                                      wire::OptimizerNumbers::Reader n) {
  optimizer_spec o;
  o.type = std::move(type);
  o.learning_rate = learning_rate;
  o.momentum = momentum;
  o.nesterov = n.getNesterov();
  o.weight_decay = n.getWeightDecay();
  o.beta1 = n.getBeta1();
  o.beta2 = n.getBeta2();
  o.alpha = n.getAlpha();
  o.centered = n.getCentered();
  o.epsilon = n.getEpsilon();
  o.learning_rate_decay = n.getLearningRateDecay();
  o.initial_accumulator = n.getInitialAccumulator();
  o.clip_value = n.getClipValue();
  o.clip_norm = n.getClipNorm();
  return o;
}

learning_rate_schedule part_reader::schedule(wire::Schedule::Reader r) {
  if (r.getKind() > static_cast<std::uint8_t>(learning_rate_schedule::kind::inverse_square_root))
    throw misread{fmt::format("there is no schedule {}", r.getKind())};
  learning_rate_schedule s;
  s.type = static_cast<learning_rate_schedule::kind>(r.getKind());
  s.warmup = r.getWarmup();
  s.every = r.getEvery();
  s.decay = r.getDecay();
  s.steps = r.getSteps();
  s.minimum = r.getMinimum();
  s.timescale = r.getTimescale();
  return s;
}

void part_reader::read_files(capnp::List<capnp::Text>::Reader files) {
  spend(files.size(), small_words);
  for (const auto f : files) {
    files_.push_back(text(f));
    if (files_.back().size() > file_name_max)
      throw misread{"the name of a source file is too long"};
  }
}

source_line part_reader::line(wire::Line::Reader l) const {
  const auto file = l.getFile();
  if (file > files_.size())
    throw misread{fmt::format("a line refers to file {} of {}", file, files_.size())};
  return {file == 0 ? std::string() : files_[file - 1], l.getLine()};
}

result<void> read_message(
    std::span<const std::byte> bytes, std::size_t bytes_max, std::string_view what,
    const std::function<void(capnp::MessageReader&, std::uint64_t words)>& read) {
  const auto refuse = [&](std::string_view why) {
    return error(error_code::usage, fmt::format("not {}: {}", what, why));
  };
  if (bytes.size() > bytes_max)
    return refuse(fmt::format("{} bytes, at most {} are allowed", bytes.size(), bytes_max));
  if (bytes.empty() || bytes.size() % sizeof(capnp::word) != 0)
    return refuse(fmt::format("{} bytes are not whole words", bytes.size()));
  // Aligned for Cap'n Proto, whatever the bytes came in.
  auto words = kj::heapArray<capnp::word>(bytes.size() / sizeof(capnp::word));
  std::memcpy(words.begin(), bytes.data(), bytes.size());
  capnp::ReaderOptions options;
  options.traversalLimitInWords = 4 * words.size() + 64;
  options.nestingLimit = 16;
  try {
    capnp::FlatArrayMessageReader reader(words, options);
    read(reader, words.size());
    return {};
  } catch (const misread& e) {
    return refuse(e.what);
  } catch (const kj::Exception& e) {
    return refuse(e.getDescription().cStr());
  }
}

}  // namespace troupe::plan_parts
