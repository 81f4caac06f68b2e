# The ONNX schema and the frontend. Both are compiled from what tools/setup generates in .deps: nothing of it is in the tree.
set(schema ${CMAKE_SOURCE_DIR}/.deps/schema)
if(NOT EXISTS ${schema}/onnx.pb-c.c OR NOT EXISTS ${schema}/onnx_ops.inc)
  message(FATAL_ERROR "${schema} is missing: run tools/setup first")
endif()
pkg_check_modules(PROTOBUF_C REQUIRED IMPORTED_TARGET libprotobuf-c)
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)   # SHA-1 of external data

add_library(tessera_schema STATIC ${schema}/onnx.pb-c.c)
target_compile_options(tessera_schema PRIVATE -w)      # generated: its warnings are not ours
target_include_directories(tessera_schema SYSTEM PUBLIC ${schema})
target_link_libraries(tessera_schema PUBLIC PkgConfig::PROTOBUF_C)

tessera_layer(frontend)
get_target_property(frontend_type tessera_frontend TYPE)
if(frontend_type STREQUAL "INTERFACE_LIBRARY")
  target_link_libraries(tessera_frontend INTERFACE tessera_ir tessera_kernels tessera_schema)
else()
  target_link_libraries(tessera_frontend PUBLIC tessera_ir tessera_kernels tessera_schema PRIVATE PkgConfig::CRYPTO)
endif()
