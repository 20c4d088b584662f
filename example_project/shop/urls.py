from django.urls import path

from . import views

app_name = "shop"
urlpatterns = [
    path("", views.home, name="home"),
    path("products/<slug:sku>/", views.product, name="product"),
    path("products/<slug:sku>/picture.png", views.picture, name="picture"),
    path("orders/<slug:reference>/", views.order, name="order"),
    path("orders/<slug:reference>/forget-review/", views.forget_review, name="forget-review"),
]
