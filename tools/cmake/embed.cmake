# cmake -DOUT=FILE.cpp -DNAME=name "-DFILES=a;b" -P embed.cmake: a source with the contents of files, one after the other, as
# `const std::string_view troupe::NAME`.
string(REPLACE "|" ";" FILES "${FILES}")
set(bytes "")
foreach(file ${FILES})
  file(READ ${file} hex HEX)
  string(APPEND bytes "${hex}0a")
endforeach()
string(REGEX REPLACE "(................................................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT} "#include <string_view>\nstatic constexpr unsigned char bytes[] = {\n${bytes}};\nnamespace troupe {\nextern const std::string_view ${NAME};\n"
                  "const std::string_view ${NAME}(reinterpret_cast<const char*>(bytes), sizeof bytes);\n}\n")
