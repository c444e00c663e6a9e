@0xb7e1f4d02c83a965;
# A graph as a file: what a program has built, before any pass has seen it. The C++ side is runtime/compile/graph_file.hpp, with what is
# promised (GF-1..GF-6).
#
# Who writes it: a program (--save-graph) that wants its graph looked at, kept or compiled elsewhere; who reads it: `troupe plan`, or another
# program. A file is anybody's: a reader takes any bytes.
#
# The file, all numbers little-endian:
#
#   bytes   what
#   8       "TROUPEGR"
#   4       version of the format: 1
#   4       0
#   8       length of the message in bytes, a multiple of 8
#   8       XXH3, 64 bits, of the message
#   ...     the message: a Graph, unpacked, with its segment table
#
# Nothing follows. The hash finds damage, not malice. A reader refuses a version above its own, before it looks at the message. Fields are never removed or
# renumbered; a new one has a default that means what older writers meant, and leaves the version as it is. The version goes up where an
# older reader would take a file for something that it is not.
#
# Nodes and files are numbered by their position in their list; a node's operands have smaller numbers than it has. What follows from the
# rest (the specs of outputs) is there to be compared: a reader that would compute others has ops that mean something else.

using Cxx = import "/capnp/c++.capnp";
using Plan = import "plan.capnp";
$Cxx.namespace("troupe::wire");

struct Graph {
  name @0 :Text;                    # of jobs that are made of it
  nodes @1 :List(GraphNode);
  averages @2 :List(GraphAverage);
  roots @3 :List(GraphRoot);        # what it is for: one loss at most, and fetches; one of them at least
  files @4 :List(Text);             # source files that lines refer to
  libraries @5 :List(Plan.Library); # of users, whose ops stand in it
  regions @7 :List(GraphRegion);
  training @6 :GraphTraining;       # how its program would have trained it; absent: it did not say
  updates @8 :List(GraphUpdate);    # what runs may do to variables
}

struct GraphValue { node @0 :UInt32; output @1 :UInt32; }

struct GraphNode {
  type @0 :Text;
  name @1 :Text;                    # unique, with its scopes
  attributes @2 :List(Plan.Attribute);
  inputs @3 :List(GraphValue);
  outputs @4 :List(Plan.TensorSpec);
  device @5 :Text;                  # where it is to run; "": anywhere
  source @6 :Plan.Line;
  initializer @7 :UInt8;            # of a variable: 1 + the number in plan.capnp; 0: none
  limit @8 :Float64;
  region @9 :UInt32;                # branch or loop that it lies in: a number in the graph's regions, from 1; 0: none
}

# A part of the graph that runs only sometimes, or several times in a step (runtime/graph/graph_regions.hpp). Two follow each other: both branches of a cond(), or the
# condition and the body of a loop.
struct GraphRegion {
  kind @0 :UInt8;                   # 1 branch, 2 condition, 3 body
  parent @1 :UInt32;                # the region that it lies in
  of @2 :UInt32;                    # number of its cond() or loop: 0, 1, ... in their order
}

# A moving average; its rate makes the variable one.
struct GraphAverage {
  variable @0 :GraphValue;
  sample @1 :GraphValue;
  beside @2 :GraphValue;
  rate @3 :Float64;
}

# runtime/layers/updates.hpp.
struct GraphUpdate {
  name @0 :Text;
  kind @1 :UInt8;                   # 0 assign, 1 assign_add, 2 apply, 3 average
  variable @2 :GraphValue;
  operand @3 :GraphValue;
  rate @4 :GraphValue;              # absent: none
  when @5 :GraphValue;              # absent: none
  state @6 :Text;                   # apply: whose slots it uses
  optimizer @7 :Text;               # apply
  learningRate @8 :Float64;
  momentum @9 :Float64;
  optimizerNumbers @10 :Plan.OptimizerNumbers;
  schedule @11 :Plan.Schedule;
  source @12 :Plan.Line;
}

struct GraphRoot {
  name @0 :Text;
  at @1 :GraphValue;
  isLoss @2 :Bool;
}

# The numbers of training_spec and compile_options (runtime/compile/compile.hpp), but for places.
struct GraphTraining {
  workers @0 :UInt32 = 1;
  shards @1 :UInt32 = 1;
  update @2 :UInt8;                 # 0 sync, 1 async
  optimizer @3 :Text;
  learningRate @4 :Float64;
  momentum @5 :Float64;
  optimizerNumbers @6 :Plan.OptimizerNumbers;
  schedule @7 :Plan.Schedule;
  clipGlobalNorm @8 :Float64;
  seed @9 :UInt64 = 1;
  steps @10 :UInt64 = 1;
  observeEvery @11 :UInt64;
  isRecoverable @12 :Bool;
  hasReplicas @13 :Bool;
  hasCuts @14 :Bool;
  cutEvery @15 :UInt64;
  fuse @16 :Bool = true;
  credits @17 :UInt32 = 2;
  sparsePushes @18 :Bool = true;
  fold @19 :Bool = true;
  simplify @20 :Bool = true;
  share @21 :Bool = true;
  shareMemory @22 :Bool = true;
  onNan @23 :UInt8;                 # 0 ignore, 1 stop, 2 warn, 3 skip
  fast @24 :Bool;
  edgeBytes @25 :UInt64 = 67108864;
  orderReads @26 :Bool = true;
  allReduce @27 :Bool;
  precision @28 :UInt8;             # 0 f32, 1 bf16, 2 f16
  lossScale @29 :UInt8;             # 0 as the precision has it, 1 fixed, 2 dynamic
  lossScaleInitial @30 :Float64;
  lossScaleGrowsEvery @31 :UInt64;  # good steps
  hardPlacement @32 :Bool;          # an op that its device does not run is an error
  device @33 :Text;                 # of ops that wish for none
  deviceCollectives @34 :Bool = true;
  bucketBytes @35 :UInt64;          # 0: as was measured
  orderPushes @36 :Bool = true;
}
