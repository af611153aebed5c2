//! The values GGUF metadata can hold. Knows their type numbers, no keys.

use std::fmt;

macro_rules! scalars {
    ($($variant:ident $ty:ty, $id:literal, $name:literal;)*) => {
        /// One metadata value.
        #[derive(Debug, Clone, PartialEq)]
        pub enum GgufValue {
            $(#[doc = concat!("A value of type `", $name, "`.")] $variant($ty),)*
            /// An array of values of one type.
            Array(GgufArray),
        }

        /// An array of values of one type; arrays may nest.
        #[derive(Debug, Clone, PartialEq)]
        pub enum GgufArray {
            $(#[doc = concat!("Values of type `", $name, "`.")] $variant(Vec<$ty>),)*
            /// Arrays, each with an element type of its own.
            Array(Vec<GgufArray>),
        }

        impl GgufValue {
            /// The type's number in the file.
            pub(super) fn type_id(&self) -> u32 {
                match self {
                    $(GgufValue::$variant(_) => $id,)*
                    GgufValue::Array(_) => ARRAY_ID,
                }
            }

            /// Name of the type: `u32`, `string`, `array of i32`, ...
            pub fn type_name(&self) -> String {
                match self {
                    $(GgufValue::$variant(_) => $name.to_string(),)*
                    GgufValue::Array(a) => format!("array of {}", a.element_name()),
                }
            }
        }

        impl GgufArray {
            /// The element type's number in the file.
            pub(super) fn element_id(&self) -> u32 {
                match self {
                    $(GgufArray::$variant(_) => $id,)*
                    GgufArray::Array(_) => ARRAY_ID,
                }
            }

            /// Name of the element type.
            pub fn element_name(&self) -> &'static str {
                match self {
                    $(GgufArray::$variant(_) => $name,)*
                    GgufArray::Array(_) => "array",
                }
            }

            /// Number of elements.
            pub fn len(&self) -> usize {
                match self {
                    $(GgufArray::$variant(v) => v.len(),)*
                    GgufArray::Array(v) => v.len(),
                }
            }
        }

        $(
            impl From<$ty> for GgufValue {
                fn from(value: $ty) -> GgufValue {
                    GgufValue::$variant(value)
                }
            }

            impl From<Vec<$ty>> for GgufValue {
                fn from(values: Vec<$ty>) -> GgufValue {
                    GgufValue::Array(GgufArray::$variant(values))
                }
            }
        )*
    };
}

scalars! {
    U8 u8, 0, "u8";
    I8 i8, 1, "i8";
    U16 u16, 2, "u16";
    I16 i16, 3, "i16";
    U32 u32, 4, "u32";
    I32 i32, 5, "i32";
    F32 f32, 6, "f32";
    Bool bool, 7, "bool";
    String String, 8, "string";
    U64 u64, 10, "u64";
    I64 i64, 11, "i64";
    F64 f64, 12, "f64";
}

pub(super) const ARRAY_ID: u32 = 9;

impl From<&str> for GgufValue {
    fn from(value: &str) -> GgufValue {
        GgufValue::String(value.to_string())
    }
}

impl GgufValue {
    /// The value of any integer type.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            GgufValue::U8(v) => v.into(),
            GgufValue::I8(v) => v.into(),
            GgufValue::U16(v) => v.into(),
            GgufValue::I16(v) => v.into(),
            GgufValue::U32(v) => v.into(),
            GgufValue::I32(v) => v.into(),
            GgufValue::U64(v) => v.into(),
            GgufValue::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// The value of any float or integer type.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            GgufValue::F32(v) => Some(v.into()),
            GgufValue::F64(v) => Some(v),
            _ => self.as_integer().map(|v| v as f64),
        }
    }
}

impl GgufArray {
    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements, when they are of any integer type.
    pub fn integers(&self) -> Option<Vec<i128>> {
        fn widen<T: Copy + Into<i128>>(values: &[T]) -> Vec<i128> {
            values.iter().map(|&v| v.into()).collect()
        }
        Some(match self {
            GgufArray::U8(v) => widen(v),
            GgufArray::I8(v) => widen(v),
            GgufArray::U16(v) => widen(v),
            GgufArray::I16(v) => widen(v),
            GgufArray::U32(v) => widen(v),
            GgufArray::I32(v) => widen(v),
            GgufArray::U64(v) => widen(v),
            GgufArray::I64(v) => widen(v),
            _ => return None,
        })
    }

    /// The elements, when they are of a float or integer type.
    pub fn floats(&self) -> Option<Vec<f64>> {
        match self {
            GgufArray::F32(v) => Some(v.iter().map(|&x| x.into()).collect()),
            GgufArray::F64(v) => Some(v.clone()),
            _ => Some(self.integers()?.into_iter().map(|v| v as f64).collect()),
        }
    }
}

/// Short enough for a message or a table: long strings and arrays are cut.
impl fmt::Display for GgufValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 60;
        match self {
            GgufValue::String(s) if s.chars().count() > SHOWN => {
                let head: String = s.chars().take(SHOWN).collect();
                write!(f, "{head:?}... ({} bytes)", s.len())
            }
            GgufValue::String(s) => write!(f, "{s:?}"),
            GgufValue::Bool(v) => write!(f, "{v}"),
            GgufValue::Array(a) => write!(f, "[{} x {}]", a.len(), a.element_name()),
            GgufValue::F32(v) => write!(f, "{v}"),
            GgufValue::F64(v) => write!(f, "{v}"),
            other => write!(f, "{}", other.as_integer().unwrap_or_default()),
        }
    }
}
