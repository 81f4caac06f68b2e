# Writes files as C arrays, to be compiled in:  cmake -DOUT=x.c "-DFILES=a.html;b.css" -P embed.cmake
# The bytes of a.html are `const char embedded_a_html[]`, with a terminating 0, and `const size_t embedded_a_html_bytes` without it.
set(text "// Made from files of the tree by cmake/embed.cmake.\n#include <stddef.h>\n")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  string(REGEX REPLACE "[^A-Za-z0-9]" "_" name ${name})
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
  string(APPEND text "extern const char embedded_${name}[];\nextern const size_t embedded_${name}_bytes;\n")
  string(APPEND text "const char embedded_${name}[] = {${bytes}0};\nconst size_t embedded_${name}_bytes = sizeof embedded_${name} - 1;\n")
endforeach()
file(WRITE ${OUT} "${text}")
