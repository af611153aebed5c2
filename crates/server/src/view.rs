//! The model as the page draws it.

use serde_json::{Value, json};

use crate::service::Service;

/// `/api/mambo/model`.
pub(crate) fn model(service: &Service) -> Value {
    let mut view = service.info.view.clone();
    let usual = service.text.sampling();
    view["name"] = service.model_name().into();
    view["recommended"] = json!({"temperature": usual.temperature, "top_p": usual.top_p});
    view
}
