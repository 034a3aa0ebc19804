#pragma once
// Lists of registers in the assembler text of wgmma, for the macros of its wrappers: LETHE_Dn(d, i), the operands d[i] to d[i + n − 1], and LETHE_Nn,
// the names of the first n.

// clang-format off
#define LETHE_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LETHE_D8(d, i) LETHE_D4(d, i), LETHE_D4(d, i + 4)
#define LETHE_D32(d, i) LETHE_D8(d, i), LETHE_D8(d, i + 8), LETHE_D8(d, i + 16), LETHE_D8(d, i + 24)
#define LETHE_N4 "%0, %1, %2, %3"
#define LETHE_N8 LETHE_N4 ", %4, %5, %6, %7"
#define LETHE_N16 LETHE_N8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LETHE_N24 LETHE_N16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define LETHE_N32 LETHE_N24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define LETHE_N36 LETHE_N32 ", %32, %33, %34, %35"
#define LETHE_N64 \
  LETHE_N36 ", %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LETHE_N68 LETHE_N64 ", %64, %65, %66, %67"
#define LETHE_N128 \
  LETHE_N68 ", %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// clang-format on
