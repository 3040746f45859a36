/* Operators from outside: a shared library that exports lathe_custom_ops() brings some. Plain C, stable: a library that
 * was built against this header works with every Lathe of the same LATHE_CUSTOM_OP_ABI. docs/custom-operators.md has an
 * example.
 *
 * Lathe owns all memory that it passes, and it lives until the call returns. Functions return 1 when they did their
 * work; 0 after they called fail(). They must not throw. */
#ifndef LATHE_CUSTOM_OP_H
#define LATHE_CUSTOM_OP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LATHE_CUSTOM_OP_ABI 1u
/* An extent or a rank that inference does not know. An open extent that has a name in the model is a number below
 * this one, the same for the same name: handed back in set_output it tells that the extents are equal. */
#define LATHE_UNKNOWN (-1)

/* Element types: the numbers of ONNX's TensorProto.DataType. */
enum {
  LATHE_ABSENT = 0,
  LATHE_FLOAT32 = 1,
  LATHE_UINT8 = 2,
  LATHE_INT8 = 3,
  LATHE_UINT16 = 4,
  LATHE_INT16 = 5,
  LATHE_INT32 = 6,
  LATHE_INT64 = 7,
  LATHE_BOOL = 9,
  LATHE_FLOAT16 = 10,
  LATHE_FLOAT64 = 11,
  LATHE_UINT32 = 12,
  LATHE_UINT64 = 13,
  LATHE_BFLOAT16 = 16
};
/* Sets of types, one bit each: LATHE_TYPE(LATHE_FLOAT32) | LATHE_TYPE(LATHE_FLOAT64). 0 allows every type. */
#define LATHE_TYPE(type) (UINT64_C(1) << (type))

/* A dense row-major array. */
typedef struct LatheTensor {
  int32_t type;        /* LATHE_ABSENT: an optional input that is not there */
  int32_t rank;        /* LATHE_UNKNOWN only in infer */
  const int64_t* dims; /* an extent is below 0 only in infer */
  const void* data;    /* in infer: null unless the elements are known already */
} LatheTensor;

/* One call of the library by Lathe: of create, infer or compute, for one node. */
typedef struct LatheCall LatheCall;

/* What the library may ask Lathe for during a call. */
typedef struct LatheHost {
  uint32_t size; /* bytes of this struct: a later Lathe may append functions */
  /* The node's attributes: 1 and the value, or 0 when the node has no attribute of this name and kind. */
  int (*get_int)(LatheCall*, const char* name, int64_t* value);
  int (*get_float)(LatheCall*, const char* name, float* value);
  int (*get_string)(LatheCall*, const char* name, const char** value);
  int (*get_ints)(LatheCall*, const char* name, const int64_t** values, size_t* count);
  int (*get_floats)(LatheCall*, const char* name, const float** values, size_t* count);
  int (*get_tensor)(LatheCall*, const char* name, LatheTensor* value);
  /* In infer, for every output. rank and extents may be LATHE_UNKNOWN. */
  int (*set_output)(LatheCall*, int32_t output, int32_t type, int32_t rank, const int64_t* dims);
  /* In compute, for every output: where its elements go. Type and shape must agree with what infer said. Null: they do
   * not, or memory ran out; return 0 then. */
  void* (*output)(LatheCall*, int32_t output, int32_t type, int32_t rank, const int64_t* dims);
  /* The message of the error that the user sees; the node is named for you. */
  void (*fail)(LatheCall*, const char* message);
} LatheHost;

enum { LATHE_OP_VARIES = 1 /* the same inputs may give other results: never computed ahead */ };

typedef struct LatheCustomOp {
  const char* name;
  const char* domain;    /* not "" and not one of Lathe's own operators */
  int32_t since_version; /* of the domain's opset; the op with the largest that a model allows is taken */
  uint32_t flags;
  int32_t min_inputs, max_inputs; /* max -1: any number */
  int32_t min_outputs, max_outputs;
  const uint64_t* input_types; /* a set of types for each input; the last one is that of all behind it, too */
  uint32_t input_type_count;   /* 0: all inputs may be of any type */
  /* What compute needs of a node, made once when the node's shapes are known. Both may be null. */
  int (*create)(const LatheHost*, LatheCall*, void** kernel);
  void (*destroy)(void* kernel);
  int (*infer)(const LatheHost*, LatheCall*, int32_t inputs, const LatheTensor* input, int32_t outputs);
  /* Runs often, and on several threads at a time with one kernel. */
  int (*compute)(const LatheHost*, LatheCall*, void* kernel, int32_t inputs, const LatheTensor* input, int32_t outputs);
} LatheCustomOp;

typedef struct LatheCustomOps {
  uint32_t abi;     /* LATHE_CUSTOM_OP_ABI */
  uint32_t op_size; /* sizeof(LatheCustomOp) */
  uint32_t count;
  const LatheCustomOp* ops;
} LatheCustomOps;

/* The one function that the library exports. What it returns stays valid as long as the library is loaded. */
#define LATHE_CUSTOM_OPS_SYMBOL "lathe_custom_ops"
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const LatheCustomOps*
lathe_custom_ops(void);

#ifdef __cplusplus
}
#endif
#endif
